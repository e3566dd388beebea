"""How much of each kind of adapter file each program loads, by the table of programs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from modules.config.sections.output import Output
from modules.families.chroma.spec import FROZEN
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.lora import adapter_loads
from modules.families.kinds.record import Loads
from modules.families.parts.single_file.models import shipped_configs
from modules.families.published import ALL_PROGRAMS
from modules.families.registry import FAMILIES, published_model, published_models
from modules.formats.adapter_forms import Naming
from modules.formats.checkpoint_header import CheckpointHeader, read_checkpoint_header
from modules.formats.program_table import CHANGES, COMFY_OF_FLOW, EXTRAS, NAMES, UNKNOWN
from modules.formats.program_table import PROGRAMS as PROGRAMS_OF_TABLE
from modules.settings.field import records_of
from tests.builders import lora_keys as by
from tests.builders.lora_keys import Keys
from tests.unit.test_kinds import write_header
from trainer.__main__ import main
from trainer.events import ModelSaved

BUNDLED: Keys = {"bundle_emb.cat.string_to_param.*": (4, 768)}
LOHA: Keys = {f"lora_unet_conv_in.hada_{n}": (4, 4) for n in ("w1_a", "w1_b", "w2_a", "w2_b")}

NINE = (("a", (320, 4)), ("b", (4, 81)))  # beside a first layer with nine inputs
LOKR_TUCKER: Keys = {
    f"lora_unet_mid_block_resnets_0_conv1.lokr_{name}": shape
    for name, shape in {"w1": (32, 32), "w2_a": (4, 40), "w2_b": (4, 40), "t2": (4, 4, 3, 3)}.items()
}
OFT: Keys = {"lora_unet_conv_in.oft_blocks": (20, 16, 16)}
OFT_SGM: Keys = {"lora_unet_input_blocks_1_0_in_layers_2.oft_blocks": (20, 16, 16)}

# Each row: the model, its tensors, and how much of them ComfyUI, Forge, A1111, sd-scripts and diffusers 0.42.1 and 0.31
# load. Rows of plain LoRA files were measured with the programs' own code; LoHa, DoRA, SimpleTuner and bundled
# embeddings follow from facts read in them; "?" is unknown.
NOBODY = " ".join(["none"] * 6)
Row = tuple[str, Callable[[], Keys], str]
ROWS: dict[str, Row] = {
    "kohya, SD 1.5": ("sd1", lambda: by.kohya("sd1"), "all all all part all part"),
    "kohya, SD 2 v": ("sd2_v", lambda: by.kohya("sd2_v"), "all all all part all part"),
    "kohya, SDXL": ("sdxl", lambda: by.kohya("sdxl"), "all all all part all none"),
    "kohya, SDXL, transformers": (
        "sdxl",
        lambda: by.kohya("sdxl", by.transformers),
        "all all all all all all",
    ),
    "PEFT, SD 1.5": ("sd1", lambda: by.peft("sd1"), "part none none none all all"),
    "PEFT, SDXL": ("sdxl", lambda: by.peft("sdxl"), "part none none none all all"),
    "diffusers, SD 1.5": ("sd1", lambda: by.peft("sd1", by.attention), "part none none none all all"),
    "diffusers, SD 1.5, new": ("sd1", lambda: by.peft("sd1", by.attention, bare=True), "none none none none all ?"),
    "diffusers, SDXL": ("sdxl", lambda: by.peft("sdxl", by.attention), "part none none none all all"),
    "diffusers, SDXL, new": ("sdxl", lambda: by.peft("sdxl", by.attention, bare=True), "part none none none all ?"),
    "raw PEFT": ("sd1", lambda: by.peft("sd1", by.unet, start="base_model.model."), NOBODY),
    "Tucker": (
        "sd1",
        lambda: by.with_each(by.kohya("sd1"), "lora_mid.weight", (4, 4, 3, 3)),
        "all all all ? none none",
    ),
    "SDXL, diffusers names": (
        "sdxl",
        lambda: by.kohya("sdxl", is_sgm=False),
        "all all part part part part",
    ),
    "OneTrainer, SDXL": (
        "sdxl",
        lambda: by.kohya("sdxl", by.everything),
        "all all ? part all none",
    ),
    "SD 1.5, lora_te1_": (
        "sd1",
        lambda: by.kohya("sd1", by.transformers, text="lora_te1"),
        "all all all ? all ?",
    ),
    "w_norm, SD 1.5": ("sd1", lambda: by.kohya("sd1", norms=True), "all all all part none none"),
    "ComfyUI, SDXL": ("sdxl", lambda: by.comfy("sdxl"), "all none none none none none"),
    "bundled embedding": ("sd1", lambda: by.kohya("sd1") | BUNDLED, "all part all part none none"),
    "PEFT with alpha": ("sd1", lambda: by.peft("sd1") | {"unet.conv_in.alpha": ()}, "part none none none none none"),
    "DoRA of outputs": (
        "sd1",
        lambda: by.with_each(by.kohya("sd1"), "dora_scale", (4, 1)),
        "none none none ? none none",
    ),
    "DoRA of inputs": (
        "sd1",
        lambda: by.with_each(by.kohya("sd1"), "dora_scale", (1, 4)),
        "all all all ? none none",
    ),
    "DoRA, PEFT": ("sd1", lambda: by.with_magnitudes(by.peft("sd1")), "none none none none all all"),
    "LoHa, DoRA of outputs": (
        "sd1",
        lambda: LOHA | {"lora_unet_conv_in.dora_scale": (320, 1, 1, 1)},
        NOBODY,
    ),
    "LoHa, DoRA of inputs": (
        "sd1",
        lambda: LOHA | {"lora_unet_conv_in.dora_scale": (1, 4, 1, 1)},
        "all all all none none none",
    ),
    "LoHa of OneTrainer": (
        "sd1",
        lambda: {n: (*s, 1, 1) for n, s in LOHA.items()},
        "none ? all none none none",
    ),
    "LoKr, Tucker": ("sd1", lambda: LOKR_TUCKER, "none none all ? none none"),
    "OFT": ("sd1", lambda: OFT, "all none all none none none"),
    "OFT, rescaled": (
        "sd1",
        lambda: OFT | {"lora_unet_conv_in.rescale": (320, 1, 1, 1)},
        "none none all none none none",
    ),
    "OFT of sd-scripts, SDXL": ("sdxl", lambda: by.renamed(OFT_SGM, "^lora_", "oft_"), "none none all ? none none"),
    "OFT of sd-scripts, SD 1.5": ("sd1", lambda: by.renamed(OFT, "^lora_", "oft_"), "none none none ? none none"),
    "inpainting": (
        "sd1",
        lambda: by.kohya("sd1") | {"lora_unet_conv_in.lora_down.weight": (4, 9, 3, 3)},
        "all all part part all part",
    ),
    "inpainting, LoHa": (
        "sd1",
        lambda: LOHA | {f"lora_unet_conv_in.hada_w{n}_{m}": s for n in (1, 2) for m, s in NINE},
        "all all none none none none",
    ),
    "rank of 0": (
        "sd1",
        lambda: {n: tuple(x if x != by.RANK else 0 for x in s) for n, s in by.kohya("sd1").items()},
        NOBODY,
    ),
    "a layer of two ranks": (
        "sd1",
        lambda: by.kohya("sd1") | {"lora_unet_conv_in.lora_down.weight": (8, 4, 3, 3)},
        "part part part part part part",
    ),
    "LoHa": ("sd1", lambda: LOHA, "all all all none none none"),
    "LoHa without a factor": (
        "sd1",
        lambda: {n: s for n, s in LOHA.items() if n.endswith("hada_w1_a")},
        "? ? ? none none none",
    ),
    "LoRA without up": (
        "sd1",
        lambda: {n: s for n, s in by.kohya("sd1").items() if n != "lora_unet_conv_in.lora_up.weight"},
        "? ? ? part none none",
    ),
    "before PEFT": ("sd1", lambda: by.processors("sd1"), "? ? none none all ?"),
    "SimpleTuner": (
        "sd1",
        lambda: by.renamed(by.kohya("sd1", by.unet), "^lora_unet_", "lycoris_"),
        "all all none none none none",
    ),
}
# The same of flow models: the beginning of the names, the layout of the paths, and how much ComfyUI and diffusers load.
# ComfyUI's answers follow from the names that its source maps to its own (`COMFY_OF_FLOW`).
FLOW_ROWS: dict[str, tuple[str, str, str, str]] = {
    "Z-Image, kohya": ("z_image", "lora_unet_", "diffusers", "part all"),
    "Z-Image, ComfyUI": ("z_image", "diffusion_model.", "diffusers", "all all"),
    "Z-Image, ComfyUI's checkpoint": ("z_image", "diffusion_model.", "comfyui", "all part"),
    "Z-Image, kohya, ComfyUI's checkpoint": ("z_image", "lora_unet_", "comfyui", "all ?"),
    "Z-Image, diffusers": ("z_image", "transformer.", "diffusers", "all all"),
    "Z-Image, SimpleTuner": ("z_image", "lycoris_", "diffusers", "all none"),
    "Z-Image, without a prefix": ("z_image", "", "diffusers", "all none"),
    "Z-Image, OneTrainer": ("z_image", "lora_transformer_", "diffusers", "none none"),
    "FLUX.1, kohya": ("flux_dev", "lora_unet_", "original", "all part"),
    "FLUX.1, ComfyUI": ("flux_dev", "diffusion_model.", "original", "all none"),
    "FLUX.1, diffusers": ("flux_dev", "transformer.", "diffusers", "all all"),
    "FLUX.1, SimpleTuner": ("flux_dev", "lycoris_", "diffusers", "all none"),
    "FLUX.1, OneTrainer": ("flux_dev", "lora_transformer_", "diffusers", "all ?"),
    "Chroma1, kohya": ("chroma1", "lora_unet_", "original", "all part"),
    "Chroma1, diffusers": ("chroma1", "transformer.", "diffusers", "all all"),
    "Krea 2, kohya": ("krea2", "lora_unet_", "original", "all none"),
    "Krea 2, ComfyUI": ("krea2", "diffusion_model.", "original", "all all"),
    "Krea 2, diffusers": ("krea2", "transformer.", "diffusers", "all all"),
}
PROGRAMS = ("ComfyUI", "Forge", "A1111", "sd-scripts", "diffusers", "diffusers 0.31")


def loads(model: str, keys: Keys, *, programs: tuple[str, ...] = PROGRAMS) -> dict[str, Loads]:
    header = CheckpointHeader(Path("lora.safetensors"), "safetensors", keys, {}, {})
    found = {x.program: x for x in adapter_loads(header, FileKind("lora", "", model=model))}
    return {program: found[program] for program in programs}


@pytest.mark.parametrize("row", ROWS)
def test_each_kind_of_file_is_answered_as_the_programs_load_it(row: str) -> None:
    model, keys, expected = ROWS[row]
    words = [x.loads for x in loads(model, keys()).values()]
    assert [{"unknown": "?"}.get(word, word) for word in words] == expected.split()


def flow_keys(model: str, start: str, layout: Any) -> Keys:
    """The tensors of a LoRA of all layers of a denoiser in one layout, the matrices of that layout for their pieces.

    Without Chroma's approximator, which no adapter changes.
    """
    targets = published_model(model).adapter_targets(shipped_configs(model))
    every = {t.path: t for found in targets.by_name.values() for t in found if not t.is_text and layout in t.paths}
    inside = {piece.path for target in every.values() for piece in target.pieces}
    inside |= {path for path in every if path.startswith(FROZEN)}
    keys: Keys = {}
    for target in (t for path, t in every.items() if path not in inside):
        path = target.paths[layout]
        name = f"{start}{path.replace('.', '_') if start.endswith('_') else path}"
        down, up = ("lora_down", "lora_up") if start.endswith("_") else ("lora_A", "lora_B")
        keys |= {f"{name}.{down}.weight": (4, target.weight[1]), f"{name}.{up}.weight": (target.weight[0], 4)}
    return keys


@pytest.mark.parametrize("row", FLOW_ROWS)
def test_each_naming_of_a_flow_model_is_answered_as_the_programs_load_it(row: str) -> None:
    model, start, layout, expected = FLOW_ROWS[row]
    found = loads(model, flow_keys(model, start, layout), programs=("ComfyUI", "diffusers"))
    assert [{"unknown": "?"}.get(x.loads, x.loads) for x in found.values()] == expected.split()
    assert found["ComfyUI"].version == COMFY_OF_FLOW
    assert ("convert it to the ComfyUI form" in found["ComfyUI"].note) is (expected.split()[0] != "all")


@pytest.mark.parametrize("model", by.CONFIGS)
def test_the_form_of_our_loras_loads_completely_in_the_most_programs(model: str) -> None:
    forms = {"kohya": by.kohya(model), "diffusers": by.peft(model), "kohya, SGM": by.kohya(model, is_sgm=True)}
    complete = {form: sum(bool(x.complete) for x in loads(model, keys).values()) for form, keys in forms.items()}
    assert FAMILIES[published_model(model).family].adapter_form == "kohya"
    assert complete["kohya"] == max(complete.values())
    main_programs = {p: x.complete for p, x in loads(model, forms["kohya"]).items() if x.is_main}
    assert main_programs == dict.fromkeys(("ComfyUI", "Forge", "A1111", "diffusers"), True)


@pytest.mark.parametrize("model", by.CONFIGS)
def test_our_names_of_layers_are_those_of_the_writing_program(model: str) -> None:
    written = {t.kohya_name for t in published_model(model).adapter_targets(shipped_configs(model)).all}
    assert {name.split(".")[0] for name in by.kohya(model)} <= written


def test_the_help_of_the_format_says_who_loads_it_completely() -> None:
    [record] = [r for r in records_of(Output) if r.path == "format"]
    for form, keys in (("kohya", by.kohya("sd1")), ("diffusers", by.peft("sd1"))):
        *most, last = [p for p in ALL_PROGRAMS if loads("sd1", keys)[p].complete]
        programs = f"{', '.join(most)} and {last}" if most else f"{last} alone"
        assert re.search(rf"in {form} format (it )?loads completely in {programs}", record.setting.help)


def test_inspect_shows_the_reasons_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_header(tmp_path / "lora.safetensors", by.peft("sd1", by.attention))
    assert main(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Loaded completely by") + 1
    advice = "; convert it to the kohya form"
    assert lines[start : start + 4] == [
        f"  ComfyUI    partly  does not map the attention of this form{advice}",
        f"  A1111      no      does not know these names{advice}",
        f"  Forge      no      refuses the file, because it cannot place the attention of this form{advice}",
        "  diffusers  yes",
    ]
    main(["inspect", str(path), "--json"])
    found = {x["program"]: x for x in json.loads(capsys.readouterr().out)["loads"]}
    comfy = found["ComfyUI"]
    assert (comfy["complete"], comfy["loads"], comfy["version"]) == (False, "part", "0.3.64")
    assert set(found) == {*PROGRAMS, "LyCORIS"}


def test_other_programs_are_shown_where_they_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", str(write_header(tmp_path / "lora.safetensors", by.kohya("sd1")))])
    shown = capsys.readouterr().out
    assert "sd-scripts      partly  has no LoRA on layers outside the blocks" in shown
    main(["inspect", str(write_header(tmp_path / "lora.safetensors", by.kohya("sd1", by.transformers)))])
    assert "sd-scripts" not in capsys.readouterr().out


def answers(path: Path) -> dict[str, str]:
    found = adapter_loads(read_checkpoint_header(path), FileKind("lora", "", model="sd1"))
    return {x.program: x.answer for x in found}


def test_an_alpha_that_is_not_finite_is_seen_as_damage(tmp_path: Path) -> None:
    path = write_header(tmp_path / "f.safetensors", by.kohya("sd1"), values={"lora_unet_conv_in.alpha": math.nan})
    found = answers(path)
    assert {found[program] for program in ALL_PROGRAMS} == {"partly"}


def test_a_constraint_of_lycoris_is_another_limit_in_comfyui(tmp_path: Path) -> None:
    """Files of our own have an alpha that limits nothing anywhere."""
    keys = OFT | {"lora_unet_conv_in.alpha": ()}
    for alpha, answer in ((0.001, "no"), (0.0, "yes"), (1024.0, "yes")):
        path = write_header(tmp_path / "f.safetensors", keys, values={"lora_unet_conv_in.alpha": alpha})
        found = answers(path)
        assert (found["ComfyUI"], found["A1111"]) == (answer, "yes")


def test_an_inpainting_oft_is_known_by_its_metadata(tmp_path: Path) -> None:
    """Its factors fit any number of inputs."""
    for architecture, answer in (("stable-diffusion-v1-inpainting/lora", "no"), ("stable-diffusion-v1/lora", "yes")):
        path = write_header(tmp_path / "f.safetensors", OFT, metadata={"modelspec.architecture": architecture})
        assert answers(path)["A1111"] == answer


def test_lycoris_own_loader_is_named_where_it_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = by.with_each(by.kohya("sd1"), "dora_scale", (1, 4))
    main(["inspect", str(write_header(tmp_path / "lora.safetensors", keys))])
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "LyCORIS no raises an error for DoRA on the input axis" in shown
    main(["inspect", str(write_header(tmp_path / "lora.safetensors", by.kohya("sd1")))])
    assert "LyCORIS" not in capsys.readouterr().out


def test_a_bundled_embedding_at_the_output_is_for_nobody_else() -> None:
    found = loads("sd1", by.kohya("sd1") | {f"bundle_emb.<zog>.emp_params{end}": (2, 768) for end in ("", "_out")})
    assert found["A1111"].loads == "part"
    assert "at the output" in found["A1111"].note


def test_a_file_for_an_unknown_model_is_loaded_by_nobody_we_know(tmp_path: Path) -> None:
    keys = {"lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight": (4, 3072)}
    header = CheckpointHeader(tmp_path, "safetensors", keys, {}, {})
    assert {x.complete for x in adapter_loads(header, FileKind("lora", ""))} == {None}


def test_every_program_has_a_version_and_only_programs_are_in_the_rows() -> None:
    assert [name for name, program in PROGRAMS_OF_TABLE.items() if program.is_main] == list(ALL_PROGRAMS)
    assert all(program.version for program in PROGRAMS_OF_TABLE.values())
    rows_of_models = [model.naming_rows for model in published_models()]
    for table in (NAMES, CHANGES, EXTRAS, *rows_of_models):
        assert all(row.keys() <= PROGRAMS_OF_TABLE.keys() for row in table.values())
    assert set(NAMES).union(*rows_of_models) == set(get_args(Naming))


def test_advice_is_given_only_where_it_helps() -> None:
    notes = {p: x.note for p, x in loads("sdxl", by.kohya("sdxl", is_sgm=False)).items()}
    assert notes["A1111"].endswith("convert it to the kohya form")
    assert "convert" not in notes["diffusers 0.31"]  # it raises an error for all of the SGM names


@pytest.mark.parametrize(("strange", "answer"), [(4, "partly"), (5, "no")])
def test_forge_tolerates_twelve_tensors_that_it_cannot_place(strange: int, answer: str) -> None:
    ends = {"lora_down.weight": (4, 4), "lora_up.weight": (4, 4), "alpha": ()}
    keys = {f"lora_unet_strange_{n}.{end}": shape for n in range(strange) for end, shape in ends.items()}
    assert loads("sd1", by.kohya("sd1") | keys)["Forge"].answer == answer


def test_forge_refuses_a_file_with_many_bundled_embeddings() -> None:
    keys = {f"bundle_emb.cat{n}.{name}": (2, 768) for n in range(7) for name in ("clip_l", "clip_g")}
    few = dict(list(keys.items())[:12])
    plain = by.kohya("sdxl", by.transformers)
    found = loads("sdxl", plain | few)["Forge"]
    assert (found.loads, found.note) == ("part", "ignores the bundled embeddings")
    assert loads("sdxl", plain | keys)["Forge"].answer == "no"


def test_an_answer_carries_once_that_it_was_not_measured() -> None:
    unknown = Loads("ComfyUI", "unknown", UNKNOWN.why)
    assert (unknown.answer, unknown.remark) == ("?", "not measured")
    assert replace(unknown, note="made for another size").remark == "made for another size"
    assert not replace(unknown, loads="all").remark
    saved = ModelSaved(1, "a.safetensors", "diffusers", True, loading={"ComfyUI": unknown.answer})
    assert saved.loading_words == "not tested in ComfyUI"
