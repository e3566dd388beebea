"""convert of adapter files, as a user types it: every form in, kohya or PEFT form out, and back to the same bits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.families.kinds.identify import identify
from modules.families.kinds.lora_conversion import convert_metadata
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.registry import published_model
from modules.formats.adapter_file import AdapterFile, read_adapter_file
from modules.formats.adapter_layers import AdapterLayer
from tests.builders.adapter_forms import (
    FORMS,
    Tensors,
    change_of,
    lora_layers,
    norm_layers,
    of_kind,
    processor_tensors,
    tensors_in,
    with_dora,
    with_tucker,
)
from tests.builders.matrix import matrix
from tests.builders.single_files import tiny_configs
from trainer.__main__ import main

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
OWN = {"sd1": "kohya, diffusers names", "sdxl": "kohya, SGM names"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is typed counts from the test's own folder."""
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(tmp_path))


def write(path: Path, tensors: Tensors, model: str, **metadata: str) -> None:
    """Write a file for the tiny model of a kind; its size is in the metadata."""
    configs = {CONFIGS_KEY: json.dumps(tiny_configs(model))}
    save_file(
        tensors, path, configs | {"modelspec.architecture": f"{published_model(model).architecture}/lora"} | metadata
    )


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def read(path: Path, model: str) -> AdapterFile:
    return read_adapter_file(path, published_model(model).adapter_targets(tiny_configs(model)))


def assert_same_bits(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape), name
        assert torch.equal(tensor, theirs[name]), name


def assert_same_effect(ours: AdapterFile, layers: list[AdapterLayer], *, atol: float = 1e-6) -> None:
    by_place = {(layer.part, layer.path): layer for layer in ours.layers}
    assert by_place.keys() == {(layer.part, layer.path) for layer in layers}
    for layer in layers:
        torch.testing.assert_close(change_of(by_place[layer.part, layer.path]), change_of(layer), rtol=0, atol=atol)


@pytest.mark.daily(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 3.0, 7.0])
@pytest.mark.parametrize("model", ["sd1", "sdxl"])
def test_kohya_to_peft_and_back_is_bit_equal(model: str, alpha: float, dtype: torch.dtype, tmp_path: Path) -> None:
    configs = tiny_configs(model)
    layers = lora_layers(model, configs, ranks=(3, 2, 3), alpha=alpha, dtype=dtype)
    form = "kohya, lora_te" if model == "sd1" else OWN[model]
    tensors = tensors_in(FORMS[form], layers, configs)
    facts = {"ss_network_dim": "3", "ss_network_alpha": f"{alpha:g}", "ss_network_args": '{"conv_dim": "2"}'}
    write(tmp_path / "a.safetensors", tensors, model, **facts)
    assert main(["convert", "a.safetensors", "p.safetensors"]) == 0
    assert main(["convert", "p.safetensors", "b.safetensors"]) == 0
    assert_same_bits(load_file(tmp_path / "b.safetensors"), tensors)
    assert_same_effect(read(tmp_path / "p.safetensors", model), layers)
    assert metadata_of(tmp_path / "p.safetensors").items() >= facts.items()
    assert metadata_of(tmp_path / "b.safetensors").items() >= facts.items()
    assert "lora_adapter_metadata" not in metadata_of(tmp_path / "b.safetensors")


@pytest.mark.parametrize(("alpha", "dtype"), matrix([None, 1, 3], [*DTYPES], most_daily=3), ids=str)
def test_peft_to_kohya_and_back_is_bit_equal(alpha: int | None, dtype: torch.dtype, tmp_path: Path) -> None:
    configs = tiny_configs("sdxl")
    layers = lora_layers("sdxl", configs, dtype=dtype)
    tensors = tensors_in(FORMS["PEFT"], layers, configs)
    targets: dict[str, list[str]] = {}
    for layer in layers:
        targets.setdefault(layer.part, []).append(layer.path)
    settings: dict[str, Any] = {}
    for part, names in targets.items():
        settings |= {f"{part}.r": 2, f"{part}.lora_alpha": alpha, f"{part}.target_modules": sorted(names)}
    metadata = {} if alpha is None else {"lora_adapter_metadata": json.dumps(settings)}
    write(tmp_path / "p.safetensors", tensors, "sdxl", **metadata)
    assert main(["convert", "p.safetensors", "k.safetensors"]) == 0
    assert main(["convert", "k.safetensors", "again.safetensors"]) == 0
    assert_same_bits(load_file(tmp_path / "again.safetensors"), tensors)
    kept = json.loads(metadata_of(tmp_path / "again.safetensors")["lora_adapter_metadata"])
    assert (kept["unet.r"], kept["unet.lora_alpha"]) == (2, alpha or 2)
    assert metadata_of(tmp_path / "k.safetensors")["ss_network_alpha"] == str(alpha or 2)


@pytest.mark.daily(1)
@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form_becomes_kohyas(form: str, tmp_path: Path) -> None:
    model = "sdxl" if "text_encoder_2" in FORMS[form].holds else "sd1"
    configs = tiny_configs(model)
    layers = lora_layers(model, configs, ranks=(2, 3), takes=lambda part, path: part in FORMS[form].holds)
    write(tmp_path / "a.safetensors", tensors_in(FORMS[form], layers, configs), model)
    assert main(["convert", "a.safetensors", "k.safetensors", "--to", "kohya"]) == 0
    if not FORMS[form].alphas:
        layers = [AdapterLayer(x.part, x.path, x.factors) for x in layers]
    assert_same_effect(read(tmp_path / "k.safetensors", model), layers)
    found = identify(tmp_path / "k.safetensors")
    assert (found.model, found.facts["form"], found.facts.get("names")) == (
        model,
        "kohya",
        "sgm" if model == "sdxl" else "diffusers",
    )
    assert main(["convert", "a.safetensors", "p.safetensors", "--to", "peft", "--dtype", "float32"]) == 0
    assert_same_effect(read(tmp_path / "p.safetensors", model), layers)


def test_old_processors_become_kohyas(tmp_path: Path) -> None:
    layers = lora_layers("sd1", tiny_configs("sd1"), takes=lambda part, path: ".attn" in path, alpha=2.0)
    write(tmp_path / "a.safetensors", processor_tensors(layers, prefix=""), "sd1")
    assert main(["convert", "a.safetensors", "k.safetensors"]) == 0
    assert_same_effect(read(tmp_path / "k.safetensors", "sd1"), layers)


EMBEDDING = {"bundle_emb.cat.clip_l": torch.ones(2, 8), "bundle_emb.cat.clip_g": torch.ones(2, 12)}


@pytest.mark.daily(6)
@pytest.mark.parametrize("dtype", ["", "bfloat16"])
@pytest.mark.parametrize("kind", ["loha", "lokr", "oft", "tucker", "dora", "norms"])
def test_every_type_keeps_its_tensors_under_kohyas_names(kind: str, dtype: str, tmp_path: Path) -> None:
    configs = tiny_configs("sdxl")
    loras = lora_layers("sdxl", configs)
    layers = {
        "tucker": lambda: with_tucker(loras),
        "dora": lambda: with_dora(loras, by_input=True),
        "norms": lambda: [*loras, *norm_layers("sdxl", configs)],
    }.get(kind, lambda: of_kind(loras, kind))()
    source = tensors_in(FORMS["kohya, diffusers names"], layers, configs) | EMBEDDING
    write(tmp_path / "a.safetensors", source, "sdxl")
    options = ["--to", "kohya", *(("--dtype", dtype) if dtype else ())]
    assert main(["convert", "a.safetensors", "k.safetensors", *options]) == 0
    wanted = tensors_in(FORMS["kohya, SGM names"], layers, configs) | EMBEDDING
    if dtype:
        wanted = {name: tensor.bfloat16() for name, tensor in wanted.items()}
    assert_same_bits(load_file(tmp_path / "k.safetensors"), wanted)
    metadata = metadata_of(tmp_path / "k.safetensors")
    assert (metadata["ss_network_module"], json.loads(metadata["ss_network_args"])["algo"]) == (
        "lycoris.kohya",
        {"loha": "loha", "lokr": "lokr", "oft": "diag-oft"}.get(kind, "locon"),
    )


@pytest.mark.parametrize(
    ("factors", "algo"),
    [
        ("hada_w1_a dora_scale", "loha"),
        ("lokr_w1 lora_down.weight", "lokr"),
        ("oft_blocks", "diag-oft"),
        ("a1.weight", "glora"),
        ("diff diff_b", "full"),
        ("diff w_norm", "full"),
        ("lora_down.weight dora_scale", "locon"),
        ("lora_down.weight diff", "full"),
        ("w_norm b_norm", "locon"),
    ],
)
def test_the_metadata_name_the_algorithm_as_lycoris_does(factors: str, algo: str) -> None:
    layer = AdapterLayer("unet", "conv_in", {name: torch.ones(2, 2) for name in factors.split()})
    metadata = convert_metadata({}, [layer], published_model("sd1"), "kohya")
    assert json.loads(metadata["ss_network_args"])["algo"] == algo


def notes_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["convert", "a.safetensors", "out.safetensors", "--overwrite", *options]) == 0
    return capsys.readouterr().err


def test_what_a_form_cannot_hold_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = tiny_configs("sdxl")
    loras = lora_layers("sdxl", configs, alpha=2.0)
    names = FORMS["kohya, SGM names"]
    write(tmp_path / "a.safetensors", tensors_in(names, loras, configs), "sdxl")
    assert "strength" not in notes_of(tmp_path, capsys)
    write(tmp_path / "a.safetensors", tensors_in(names, lora_layers("sdxl", configs, alpha=1.0), configs), "sdxl")
    assert "The strength (alpha by rank: 0.5) is in the metadata" in notes_of(tmp_path, capsys)
    mixed = [AdapterLayer(x.part, x.path, x.factors, 1.0 + index % 2) for index, x in enumerate(loras)]
    write(tmp_path / "a.safetensors", tensors_in(names, mixed, configs), "sdxl")
    assert "have another alpha than most layers of their part" in notes_of(tmp_path, capsys, "--to", "kohya")
    norms = norm_layers("sdxl", configs)
    stranger = {"lora_unet_nowhere.lora_down.weight": torch.ones(1, 2)}
    both = tensors_in(names, [*with_tucker(loras), *norms], configs) | EMBEDDING | stranger
    write(tmp_path / "a.safetensors", both, "sdxl", ss_network_args='{"algo": "locon", "use_tucker": "True"}')
    said = notes_of(tmp_path, capsys, "--to", "peft")
    assert f"{len(norms)} of {len(norms) + len(loras)} layers are left out" in said
    assert "The Tucker core of" in said
    assert "The bundled embeddings are left out" in said
    assert "Tensors that belong to no layer of the model: 1, such as lora_unet_nowhere" in said
    assert_same_effect(read(tmp_path / "out.safetensors", "sdxl"), with_tucker(loras), atol=1e-5)
    assert metadata_of(tmp_path / "out.safetensors")["ss_network_args"] == '{"algo": "locon"}'
    assert "They are kept under their names" in notes_of(tmp_path, capsys, "--to", "kohya")
    assert load_file(tmp_path / "out.safetensors").keys() >= EMBEDDING.keys() | stranger.keys()


def test_dora_per_output_survives_peft_and_per_input_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = tiny_configs("sd1")
    loras = lora_layers("sd1", configs, takes=lambda part, path: part == "unet")
    tensors = tensors_in(FORMS["kohya, lora_te"], with_dora(loras), configs)
    write(tmp_path / "a.safetensors", tensors, "sd1")
    assert main(["convert", "a.safetensors", "p.safetensors"]) == 0
    peft = load_file(tmp_path / "p.safetensors")
    assert peft["unet.conv_in.lora_magnitude_vector"].shape == (1, 8, 1, 1)
    assert peft["unet.time_embedding.linear_1.lora_magnitude_vector"].ndim == 1
    assert main(["convert", "p.safetensors", "b.safetensors"]) == 0
    assert_same_bits(load_file(tmp_path / "b.safetensors"), tensors)
    by_input = with_dora(loras, by_input=True)
    write(tmp_path / "a.safetensors", tensors_in(FORMS["kohya, lora_te"], by_input, configs), "sd1")
    [square] = [x for x in by_input if x.path == "time_embedding.linear_2"]
    assert square.factors["dora_scale"].shape[0] == 1
    assert main(["convert", "a.safetensors", "c.safetensors"]) == 2
    assert "Use --to kohya" in capsys.readouterr().err


def test_of_a_layer_named_twice_the_first_copy_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = tiny_configs("sdxl")
    layers = lora_layers("sdxl", configs, takes=lambda part, path: part == "unet")
    own = tensors_in(FORMS["kohya, SGM names"], layers, configs)
    one = [layer for layer in layers if layer.path == "conv_in"]
    again = {name: tensor * 3 for name, tensor in tensors_in(FORMS["kohya, diffusers names"], one, configs).items()}
    assert all(name.startswith("lora_unet_conv_in.") for name in again)
    write(tmp_path / "a.safetensors", own | again, "sdxl")
    said = notes_of(tmp_path, capsys, "--to", "kohya")
    assert "names layers twice" in said
    assert "3 tensors of the second left out, such as lora_unet_input_blocks_0_0" in said
    assert "kept under their names" not in said
    written = load_file(tmp_path / "out.safetensors")
    assert written.keys() == own.keys()
    first = again["lora_unet_conv_in.lora_down.weight"]
    assert torch.equal(written["lora_unet_input_blocks_0_0.lora_down.weight"], first)


@pytest.mark.parametrize("size", ["Infinity", "NaN", "1e400"])
def test_impossible_sizes_in_the_metadata_are_an_error(
    size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = tiny_configs("sd1")
    tensors = tensors_in(FORMS["kohya, lora_te"], lora_layers("sd1", configs), configs)
    brought = {**configs, "unet": {**configs["unet"], "attention_head_dim": "SIZE", "cross_attention_dim": "SIZE"}}
    text = json.dumps(brought).replace('"SIZE"', size)
    write(tmp_path / "a.safetensors", tensors, "sd1", **{CONFIGS_KEY: text, "ss_base_model_version": "sd_v1"})
    assert main(["convert", "a.safetensors", "out.safetensors", "--to", "kohya"]) == 2
    assert "The model configs in the metadata of a.safetensors are not valid" in capsys.readouterr().err


def test_values_too_large_for_the_dtype_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = tiny_configs("sd1")
    tensors = tensors_in(FORMS["kohya, lora_te"], lora_layers("sd1", configs), configs)
    write(tmp_path / "a.safetensors", {n: t * 1e6 if "lora_up" in n else t for n, t in tensors.items()}, "sd1")
    assert main(["convert", "a.safetensors", "out.safetensors", "--to", "kohya", "--dtype", "float16"]) == 2
    said = capsys.readouterr().err
    assert "use --dtype float32 or --dtype bfloat16" in said
    assert "training" not in said


def test_incomplete_layers_are_reported_as_incomplete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = tiny_configs("sd1")
    tensors = tensors_in(FORMS["kohya, lora_te"], lora_layers("sd1", configs), configs)
    del tensors["lora_unet_conv_in.lora_up.weight"]
    up = tensors["lora_unet_conv_out.lora_up.weight"]
    tensors["lora_unet_conv_out.lora_up.weight"] = torch.cat([up, up], dim=1)
    write(tmp_path / "a.safetensors", tensors, "sd1")
    told = "Incomplete layers, with a missing matrix or with two that do not fit: 2, such as unet.conv_in."
    said = notes_of(tmp_path, capsys, "--to", "peft")
    assert f"{told} Left out." in said
    assert "per output only" not in said
    assert not any("conv_in." in name or "conv_out." in name for name in load_file(tmp_path / "out.safetensors"))
    assert f"{told} Kept as in the file." in notes_of(tmp_path, capsys, "--to", "kohya")
    assert_same_bits(load_file(tmp_path / "out.safetensors"), tensors)
    alone = {name: tensor for name, tensor in tensors.items() if name.startswith("lora_unet_conv_in.")}
    write(tmp_path / "a.safetensors", alone, "sd1", ss_base_model_version="sd_v1")
    assert main(["convert", "a.safetensors", "out.safetensors", "--overwrite", "--to", "peft"]) == 2
    assert told.replace("2,", "1,") in capsys.readouterr().err


@pytest.mark.parametrize("kept", ["hada_w1_a", "hada_w1_a hada_w1_b", "lokr_w1 lokr_w2_a", "lora_mid.weight"])
def test_layers_of_other_types_without_a_factor_are_incomplete(
    kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = tiny_configs("sd1")
    tensors = tensors_in(FORMS["kohya, lora_te"], lora_layers("sd1", configs), configs)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("lora_unet_conv_in.")}
    tensors |= {f"lora_unet_conv_in.{factor}": torch.ones(2, 2) for factor in kept.split()}
    write(tmp_path / "a.safetensors", tensors, "sd1")
    told = "Incomplete layers, with a missing matrix or with two that do not fit: 1, such as unet.conv_in."
    said = notes_of(tmp_path, capsys, "--to", "peft")
    assert f"{told} Left out." in said
    assert "per output only" not in said
    assert f"{told} Kept as in the file." in notes_of(tmp_path, capsys, "--to", "kohya")
    assert_same_bits(load_file(tmp_path / "out.safetensors"), tensors)


@pytest.mark.parametrize("form", ["kohya", "peft"])
@pytest.mark.parametrize("has_alpha", [False, True])
@pytest.mark.parametrize("num_rows", [None, 0])
def test_a_down_matrix_without_rows_is_an_error(
    num_rows: int | None, has_alpha: bool, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = tiny_configs("sd1")
    tensors = tensors_in(FORMS["kohya, lora_te"], lora_layers("sd1", configs), configs)
    down, up = (tensors[f"lora_unet_conv_in.lora_{side}.weight"] for side in ("down", "up"))
    tensors["lora_unet_conv_in.lora_down.weight"] = torch.tensor(1.0) if num_rows is None else down[:0]
    tensors["lora_unet_conv_in.lora_up.weight"] = up if num_rows is None else up[:, :0]
    if not has_alpha:
        del tensors["lora_unet_conv_in.alpha"]
    write(tmp_path / "a.safetensors", {n: t.contiguous() for n, t in tensors.items()}, "sd1")
    assert main(["convert", "a.safetensors", "out.safetensors", "--to", form]) == 2
    said = capsys.readouterr().err
    assert "a.safetensors is damaged at unet.conv_in: its lora_down.weight" in said
    assert "Download it again." in said
