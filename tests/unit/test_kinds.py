"""Files are identified from headers alone: every kind, every odd file, and never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.families.parts.single_file.models import layouts, shipped_configs
from modules.families.parts.unet_clip_file.unet import unet_layers
from modules.system.paths import PROGRAM_ROOT

Shapes = dict[str, tuple[int, ...]]
CROSS = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"


def write_header(
    path: Path,
    shapes: Shapes,
    *,
    dtype: str = "F16",
    metadata: dict[str, str] | None = None,
    values: Mapping[str, float] | None = None,
) -> Path:
    """A safetensors file of the given shapes whose bytes are a hole: as large as the real one, and no work.

    `values` are those of scalars, in float16.
    """
    size = {"F16": 2, "BF16": 2, "F32": 4, "F8_E4M3": 1}[dtype]
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, shape in shapes.items():
        end = offset + size * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
        for name, value in (values or {}).items():
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(np.float16(value).tobytes())
    return path


def model_shapes(model: str, *, in_channels: int = 4, without: str = "-") -> Shapes:
    """The names of a published model, with the widths that distinguish models."""
    configs = shipped_configs(model)
    names = [f"{p.prefix}{s.original}" for p in layouts(model, configs).values() for s in p.slots]
    shapes: Shapes = {n: (2, 2) for n in names if not n.startswith(without)}
    width, first = configs["unet"]["cross_attention_dim"], configs["unet"]["block_out_channels"][0]
    shapes |= {n: (first, width) for n in shapes if n.endswith("attn2.to_k.weight")}
    return shapes | {"model.diffusion_model.input_blocks.0.0.weight": (first, in_channels, 3, 3)}


def kohya(model: str, *, sgm: bool = False) -> Shapes:
    """A kohya LoRA of rank 8 on all of a model's UNet."""
    width = shipped_configs(model)["unet"]["cross_attention_dim"]
    shapes: Shapes = {}
    for layer in unet_layers(shipped_configs(model)["unet"]):
        if layer.sort != "norm":
            name = f"lora_unet_{(layer.original if sgm else layer.path).replace('.', '_')}"
            shapes[f"{name}.lora_down.weight"] = (8, width if "attn2.to_k" in layer.path else 320)
            shapes[f"{name}.lora_up.weight"] = (320, 8)
            shapes[f"{name}.alpha"] = ()
    return shapes


@pytest.mark.parametrize(
    ("model", "family", "words"),
    [
        ("sd1", "sd", "A Stable Diffusion 1.x checkpoint with epsilon prediction, float16."),
        ("sd2", "sd", "A Stable Diffusion 2.x checkpoint with epsilon prediction, float16."),
        ("sdxl", "sdxl", "A Stable Diffusion XL checkpoint with epsilon prediction, float16."),
        ("sdxl_refiner", "sdxl", "A Stable Diffusion XL refiner checkpoint with epsilon prediction, float16."),
    ],
)
def test_whole_models(model: str, family: str, words: str, tmp_path: Path) -> None:
    found = identify(write_header(tmp_path / "m.safetensors", model_shapes(model)))
    assert (found.kind, found.family, found.model, found.sentence) == ("checkpoint", family, model, words)
    assert found.is_model


@pytest.mark.parametrize(("channels", "variant"), [(9, "inpainting"), (8, "instruct"), (5, "depth")])
def test_variants_by_their_unets_input_channels(channels: int, variant: str, tmp_path: Path) -> None:
    found = identify(write_header(tmp_path / "m.safetensors", model_shapes("sdxl", in_channels=channels)))
    assert found.variant == variant
    assert f"Stable Diffusion XL {variant} checkpoint" in found.sentence


def test_v_prediction_by_marker_metadata_or_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    plain = model_shapes("sdxl")
    found = identify(write_header(path, plain | {"v_pred": (0,), "ztsnr": (0,)}))
    assert (found.prediction, found.zero_snr, found.facts["prediction_from"]) == ("v_prediction", True, "v_pred tensor")
    assert "with v-prediction and zero terminal SNR" in found.sentence
    for key in ("modelspec.prediction_type", "modelspec.predict_key"):
        assert identify(write_header(path, plain, metadata={key: "v"})).prediction == "v_prediction"
    write_header(path, model_shapes("sd1"))
    path.with_suffix(".yaml").write_text('model:\n  params:\n    parameterization: "v"\n    use_ztsnr: true\n')
    found = identify(path)
    assert (found.prediction, found.zero_snr, found.facts["prediction_from"]) == ("v_prediction", True, "m.yaml")
    write_header(path, plain | {"v_pred": (0,)})
    path.with_suffix(".yaml").write_text("target: sgm.modules.diffusionmodules.denoiser_scaling.VScaling\n")
    assert identify(path).facts["prediction_from"] == "v_pred tensor, m.yaml"
    path.with_suffix(".yaml").write_text("target: sgm.modules.diffusionmodules.denoiser_scaling.EpsScaling\n")
    assert identify(path).prediction == "epsilon"
    write_header(path, plain)
    path.with_suffix(".yaml").write_bytes(b"\xff\xfe nothing: [")
    assert identify(path).prediction == "epsilon"
    assert identify(write_header(tmp_path / "e.safetensors", plain | {"edm_mean": (4,)})).prediction == "edm"


def test_sd2_by_the_spread_of_one_norm(tmp_path: Path) -> None:
    """ComfyUI's heuristic: above 0.09 it uses v-prediction."""
    marker = "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.norm1.bias"
    rest = {n: s for n, s in model_shapes("sd2").items() if n != marker}
    path = tmp_path / "m.safetensors"
    for spread, prediction, model in ((0.01, "epsilon", "sd2"), (0.5, "v_prediction", "sd2_v")):
        write_header(path, {marker: (320,)} | rest)
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        values = (np.random.default_rng(0).standard_normal(320) * spread).astype("<f2")
        with path.open("r+b") as file:
            file.seek(start)
            file.write(values.tobytes())
        found = identify(path)
        assert (found.prediction, found.model) == (prediction, model)


def test_missing_parts_of_a_checkpoint_are_named(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.safetensors", model_shapes("sdxl", without="first_stage_model."))
    assert identify(path).sentence.endswith(", without VAE.")
    unet = {n: s for n, s in model_shapes("sdxl").items() if n.startswith("model.diffusion_model.")}
    found = identify(write_header(path, unet))
    assert (found.kind, found.model) == ("part", "sdxl")
    assert "UNet alone" in found.sentence


@pytest.mark.parametrize(("model", "sgm", "names"), [("sd1", False, "diffusers"), ("sdxl", True, "sgm")])
def test_kohya_loras(model: str, sgm: bool, names: str, tmp_path: Path) -> None:
    found = identify(write_header(tmp_path / "l.safetensors", kohya(model, sgm=sgm)))
    assert (found.kind, found.model, found.facts["form"], found.facts["names"]) == ("lora", model, "kohya", names)
    assert (found.facts["rank"], found.facts["adapter"]) == ("8", "LoRA")
    assert found.sentence.startswith("A LoRA of rank 8 for Stable Diffusion")


@pytest.mark.parametrize(
    ("shapes", "adapter", "form", "model"),
    [
        ({f"unet.{CROSS}.lora_A.weight": (4, 1024)}, "LoRA", "diffusers", "sd2"),
        ({"lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": (4, 8)}, "LoRA", "kohya", "sdxl"),
        ({"lora_unet_x.hada_w1_a": (8, 4), "lora_unet_x.hada_w1_b": (4, 8)}, "LoHa", "kohya", ""),
        ({"lora_unet_input_blocks_4_1_proj_in.lokr_w1": (4, 4)}, "LoKr", "kohya", "sdxl"),
        ({"lora_unet_x.oft_blocks": (4, 4, 4)}, "OFT", "kohya", ""),
        ({"lycoris_unet_x.lora_down.weight": (4, 4), "lycoris_x.dora_scale": (4, 1)}, "DoRA (LoRA)", "lycoris", ""),
    ],
)
def test_other_adapters(shapes: Shapes, adapter: str, form: str, model: str, tmp_path: Path) -> None:
    found = identify(write_header(tmp_path / "l.safetensors", shapes))
    assert (found.kind, found.facts["adapter"], found.facts["form"], found.model) == ("lora", adapter, form, model)


def test_metadata_names_the_model_where_layers_are_ambiguous(tmp_path: Path) -> None:
    shapes: Shapes = {"lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": (4, 8)}
    for metadata, model in (
        ({"ss_v2": "True"}, "sd2"),
        ({"ss_base_model_version": "sd_v1"}, "sd1"),
        ({"modelspec.architecture": "stable-diffusion-v1/lora"}, "sd1"),
        ({"ss_base_model_version": "sdxl_base_v1-0"}, "sdxl"),
    ):
        assert identify(write_header(tmp_path / "l.safetensors", shapes, metadata=metadata)).model == model


@pytest.mark.parametrize(
    ("shapes", "kind", "words"),
    [
        ({"encoder.down.0.block.0.conv1.weight": (1,), "decoder.conv_in.weight": (8, 4, 3, 3)}, "vae", "original"),
        ({"encoder.down_blocks.0.resnets.0.conv1.weight": (1,)}, "vae", "in the diffusers layout"),
        (
            {"encoder.down.0.block.0.conv1.weight": (1,), "decoder.conv_in.weight": (8, 48, 3, 3)},
            "other_model",
            "48 latent",
        ),
        ({"emb_params": (3, 768)}, "embedding", "3 tokens for Stable Diffusion 1.x"),
        ({"emp_params": (3, 1024)}, "embedding", "3 tokens for Stable Diffusion 2.x"),
        (
            {"emp_params_out": (3, 768)},
            "embedding",
            "3 tokens for Stable Diffusion 1.x, at the output",
        ),
        (
            {"clip_l_out": (2, 768), "clip_g_out": (2, 1280)},
            "embedding",
            "2 tokens for Stable Diffusion XL, at the output of the text encoder",
        ),
        ({"clip_l": (2, 768), "clip_g": (2, 1280)}, "embedding", "2 tokens for Stable Diffusion XL"),
        ({"model.diffusion_model.double_blocks.0.img_attn.norm.key_norm.scale": (1,)}, "other_model", "A Flux model"),
        ({"model.diffusion_model.joint_blocks.0.x.weight": (1,)}, "other_model", "Stable Diffusion 3"),
        ({"lora_unet_double_blocks_0_img_attn_proj.lora_down.weight": (4, 4)}, "lora", "for FLUX.1 dev or"),
        ({"control_model.input_blocks.0.0.weight": (1,)}, "part", "ControlNet"),
        ({"down_blocks.0.x": (1,), "up_blocks.0.x": (1,), "conv_in.weight": (1,)}, "part", "A UNet alone"),
        ({"text_model.encoder.layers.0.self_attn.q_proj.weight": (1,)}, "part", "text encoder"),
        ({"something.else": (1,)}, "unknown", "of an unknown model"),
        ({}, "unknown", "contains no tensors"),
    ],
)
def test_smaller_and_other_things(shapes: Shapes, kind: str, words: str, tmp_path: Path) -> None:
    found = identify(write_header(tmp_path / "f.safetensors", shapes))
    assert found.kind == kind
    assert words in found.sentence


@pytest.mark.parametrize(
    ("content", "defect", "words"),
    [
        (b"", "empty", "is empty"),
        (b"<!DOCTYPE html><html><body>Sign in</body>", "html", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n", "lfs", "git-lfs pointer"),
        ((5000).to_bytes(8, "little") + b'{"a":', "truncated", "has 13 of at least 5,008 bytes"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00[]", "damaged", "not a list of tensors"),
        (b"\xff" * 64, "damaged", "not a safetensors file"),
        (b"PK\x03\x04" + b"\x00" * 40, "damaged", "not a complete checkpoint"),
        (b"\x80\x02}q\x00.", "damaged", "not a complete checkpoint"),
    ],
)
def test_broken_files_are_described(content: bytes, defect: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    path.write_bytes(content)
    found = identify(path)
    assert (found.kind, found.facts["defect"]) == ("broken", defect)
    assert words in found.sentence


@pytest.mark.parametrize("beginning", [0x0280, 0x0380, 0x10280])
def test_a_header_whose_length_spells_a_pickle_is_still_a_header(beginning: int, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    text = json.dumps({"emb_params": {"dtype": "F16", "shape": [1, 768], "data_offsets": [0, 1536]}}).encode()
    path.write_bytes(beginning.to_bytes(8, "little") + text.ljust(beginning) + b"\x00" * 1536)
    assert identify(path).kind == "embedding"


def test_an_incomplete_download_is_detected_by_its_length(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.safetensors", model_shapes("sd1"))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1)
    found = identify(path)
    assert (found.kind, found.facts["defect"]) == ("broken", "truncated")
    assert f"{size - 1:,} of at least {size:,} bytes" in found.sentence


def test_gguf_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x00" * 50)
    assert identify(tmp_path / "m.safetensors").sentence == "m.safetensors contains no tensors."
    assert identify(tmp_path / "nothing").kind == "broken"
    assert identify(Path("a\x00b")).kind == "broken"


def test_the_error_for_an_unreadable_file_has_no_second_advice() -> None:
    broken, other = FileKind("broken", "x is empty. Download it again."), FileKind("embedding", "It is an embedding.")
    errors = [kind.refusal("x is not a LoRA.", "Choose a LoRA.") for kind in (broken, other)]
    assert [(str(error), error.advice) for error in errors] == [
        ("x is empty. Download it again.", ""),
        ("x is not a LoRA. It is an embedding. Choose a LoRA.", "Choose a LoRA."),
    ]


def test_folders_that_a_run_has_written_are_named(tmp_path: Path) -> None:
    backup = tmp_path / "run" / "backup" / "step-00000002"
    (backup / "shards").mkdir(parents=True)
    for file in ("../../config.json", "config.json", "manifest.json", "state.json"):
        (backup / file).write_text("{}")
    for file in (".metadata", "__0_0.distcp"):
        (backup / "shards" / file).write_bytes(b"")
    cases = {
        tmp_path / "run": "run is the folder of a run.",
        backup: "step-00000002 is a backup of a run.",
        backup / "shards": "shards is the sharded part of the backup of a run.",
    }
    for folder, words in cases.items():
        assert identify(folder).sentence == f"{words} Export it to get its model as a file."


def test_folders(tiny_sd: Path, tmp_path: Path) -> None:
    found = identify(tiny_sd)
    assert (found.kind, found.family, found.model, found.prediction) == ("diffusers_folder", "sd", "sd1", "epsilon")
    assert identify(tmp_path).kind == "unknown"
    (tmp_path / "model_index.json").write_text('{"_class_name": "MochiPipeline"}')
    assert "MochiPipeline" in identify(tmp_path).sentence
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    found = identify(tmp_path)
    assert "the weights of unet, text_encoder, text_encoder_2, vae are missing" in found.sentence
    (tmp_path / "model_index.json").write_text("[" * 100_000)
    assert identify(tmp_path).kind == "unknown"


def check(found: FileKind) -> None:
    assert found.sentence.endswith((".", "…", ")"))
    json.dumps(found.to_json())


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes, has_header: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(len(content).to_bytes(8, "little") + content if has_header else content)
    check(identify(path))


NAMES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(sorted(model_shapes("sd1"))[::40] + sorted(kohya("sdxl", sgm=True))[::200]),
    st.sampled_from(["emb_params", "clip_l", "v_pred", "__metadata__", "string_to_param.*", "edm_mean"]),
)
NUMBERS = st.one_of(st.integers(-3, 2**40), st.floats(), st.none(), st.text(max_size=3))
ENTRIES = st.one_of(
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F16", "F32", "BF16", "F8_E4M3", "???", ""]),
            "shape": st.lists(st.integers(0, 9), max_size=5),
            "data_offsets": st.tuples(st.just(0), st.integers(0, 300)),
        }
    ),
    st.fixed_dictionaries(
        {"dtype": NUMBERS, "shape": st.lists(NUMBERS, max_size=5), "data_offsets": st.lists(NUMBERS, max_size=3)}
    ),
    st.recursive(NUMBERS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3)),
)


@given(st.dictionaries(NAMES, ENTRIES, max_size=8))
def test_any_header_is_a_sentence(tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "header.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\x00" * 300)
    check(identify(path))


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=6), st.booleans())
def test_any_damage_to_a_pickle_is_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]], zipped: bool
) -> None:
    import torch

    path = tmp_path_factory.getbasetemp() / "any.ckpt"
    held = {"state_dict": {"a": torch.ones(2), "b": {"c": torch.ones(1)}}, "x": [1, None, (2, "y")]}
    torch.save(held, path, _use_new_zipfile_serialization=zipped)
    content = bytearray(path.read_bytes())
    for place, byte in damage:
        content[place % len(content)] = byte
    path.write_bytes(bytes(content))
    check(identify(path))


def test_recognising_needs_no_torch(tmp_path: Path) -> None:
    """The window identifies files, and the window never imports torch."""
    path = write_header(tmp_path / "m.safetensors", model_shapes("sdxl"))
    code = f"""
import sys
from pathlib import Path
from modules.families.kinds.identify import identify
assert identify(Path({str(path)!r})).model == "sdxl"
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, check=True)
