"""Every form of adapter files: which model and form they are, which layers they have, and that nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from modules.families.kinds.identify import identify
from modules.families.parts.single_file.models import CONFIGS_KEY, shipped_configs
from modules.families.registry import published_model
from modules.formats.adapter_file import AdapterFile, read_adapter_file
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.adapter_types import DORA_SCALE
from modules.system.errors import DarkroomError
from tests.builders.adapter_forms import (
    FORMS,
    Form,
    Tensors,
    lora_layers,
    norm_layers,
    of_kind,
    processor_tensors,
    tensors_in,
    weight_shapes,
    with_dora,
    with_tucker,
)
from tests.builders.single_files import tiny_configs
from tests.unit.test_kinds import write_header

MODELS = ("sd1", "sd2", "sdxl")


def fitting(form: Form, model: str) -> bool:
    """Whether a form can name every part of a model."""
    return model != "sdxl" or "text_encoder_2" in form.holds or form.holds == ("unet",)


CASES = [(model, name) for model in MODELS for name, form in FORMS.items() if fitting(form, model)]


def full_size(model: str, *, takes: Any = lambda part, path: True) -> list[AdapterLayer]:
    """A LoRA of rank 4 on every layer of a published model, without weights."""
    layers = []
    for (part, path), (rows, *inner) in sorted(weight_shapes(model, shipped_configs(model)).items()):
        if inner and takes(part, path):
            down = torch.empty(4, *inner, device="meta")
            up = torch.empty(rows, 4, *(1 for _ in inner[1:]), device="meta")
            layers.append(AdapterLayer(part, path, {DOWN: down, UP: up}, 1.0))
    return layers


def header_of(tensors: Tensors, path: Path, **metadata: str) -> Path:
    return write_header(path, {n: tuple(t.shape) for n, t in tensors.items()}, metadata=metadata)


def read(path: Path, model: str, configs: Any) -> AdapterFile:
    return read_adapter_file(path, published_model(model).adapter_targets(configs))


def equal_layers(ours: AdapterLayer, theirs: AdapterLayer) -> bool:
    return ours.factors.keys() == theirs.factors.keys() and all(
        torch.equal(tensor, theirs.factors[name]) for name, tensor in ours.factors.items()
    )


@pytest.mark.daily(20)
@pytest.mark.parametrize(("model", "form"), CASES)
def test_a_file_of_published_size_is_identified_without_metadata(model: str, form: str, tmp_path: Path) -> None:
    layers = full_size(model, takes=lambda part, path: part in FORMS[form].holds)
    tensors = tensors_in(FORMS[form], layers, shipped_configs(model))
    found = identify(header_of(tensors, tmp_path / "l.safetensors"))
    assert (found.kind, found.model, found.facts["form"], found.facts["adapter"]) == (
        "lora",
        model,
        FORMS[form].name,
        "LoRA",
    )
    assert (found.facts["layers"], found.facts["rank"]) == (str(len(layers)), "4")
    assert "size" not in found.facts


@pytest.mark.daily(20)
@pytest.mark.parametrize(("model", "form"), CASES)
def test_every_layer_is_read_from_every_form(model: str, form: str, tmp_path: Path) -> None:
    configs = tiny_configs(model)
    layers = lora_layers(model, configs, ranks=(2, 3), takes=lambda part, path: part in FORMS[form].holds)
    tensors = tensors_in(FORMS[form], layers, configs)
    save_file(tensors, tmp_path / "l.safetensors", {CONFIGS_KEY: json.dumps(configs)})
    content = read(tmp_path / "l.safetensors", model, configs)
    assert (content.form, content.unplaced, content.extra_tensors) == (FORMS[form].name, (), {})
    by_place = {(layer.part, layer.path): layer for layer in content.layers}
    assert by_place.keys() == {(layer.part, layer.path) for layer in layers}
    for layer in layers:
        found = by_place[layer.part, layer.path]
        assert equal_layers(found, layer)
        assert found.alpha == (1.5 if FORMS[form].alphas else None)


@pytest.mark.parametrize("part", ["text_encoder", "text_encoder_2"])
def test_raw_peft_of_a_text_encoder_names_no_part(part: str, tmp_path: Path) -> None:
    configs = tiny_configs("sdxl")
    layers = lora_layers("sdxl", configs, takes=lambda p, path: p == part)
    save_file(tensors_in(FORMS["raw PEFT"], layers, configs), tmp_path / "l.safetensors")
    content = read(tmp_path / "l.safetensors", "sdxl", configs)
    assert {(x.part, x.path) for x in content.layers} == {(x.part, x.path) for x in layers}


@pytest.mark.parametrize("prefix", ["unet.", ""])
def test_old_attention_processors(prefix: str, tmp_path: Path) -> None:
    is_attention = lambda part, path: ".attn" in path  # noqa: E731
    for model in ("sd1", "sd2", "sdxl"):
        tensors = processor_tensors(full_size(model, takes=is_attention), prefix=prefix)
        found = identify(header_of(tensors, tmp_path / "l.safetensors"))
        assert (found.model, found.facts["form"], found.facts["adapter"]) == (model, "diffusers", "LoRA")
    configs = tiny_configs("sd1")
    layers = lora_layers("sd1", configs, takes=is_attention)
    save_file(processor_tensors(layers, prefix=prefix), tmp_path / "l.safetensors")
    content = read(tmp_path / "l.safetensors", "sd1", configs)
    assert {x.path for x in content.layers} == {x.path for x in layers}
    assert not content.extra_tensors


def test_the_pickled_files_of_old_diffusers(tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    layers = lora_layers("sd1", configs, takes=lambda part, path: ".attn" in path)
    torch.save(processor_tensors(layers, prefix=""), tmp_path / "pytorch_lora_weights.bin")
    found = identify(tmp_path / "pytorch_lora_weights.bin")
    assert (found.kind, found.facts["form"]) == ("lora", "diffusers")
    content = read(tmp_path / "pytorch_lora_weights.bin", "sd1", configs)
    by_path = {layer.path: layer for layer in content.layers}
    assert by_path.keys() == {layer.path for layer in layers}
    assert all(equal_layers(by_path[layer.path], layer) for layer in layers)


def test_processors_of_text_encoders(tmp_path: Path) -> None:
    place = "text_encoder.text_model.encoder.layers.0.self_attn"
    tensors = {f"{place}.to_out_lora.down.weight": torch.ones(2, 8), f"{place}.to_out_lora.up.weight": torch.ones(8, 2)}
    save_file(tensors, tmp_path / "l.safetensors")
    [layer] = read(tmp_path / "l.safetensors", "sd1", tiny_configs("sd1")).layers
    assert layer.path == "text_model.encoder.layers.0.self_attn.out_proj"


def text_only(model: str, part: str) -> list[AdapterLayer]:
    return full_size(model, takes=lambda p, path: p == part and path != "text_projection")


@pytest.mark.parametrize(
    ("layers", "form", "metadata", "model"),
    [
        (("sd1", "text_encoder"), "kohya, lora_te", {}, "sd1"),
        (("sd2", "text_encoder"), "kohya, lora_te", {}, "sd2"),
        (("sdxl", "text_encoder_2"), "kohya, diffusers names", {}, "sdxl"),
        (("sd2", "text_encoder"), "kohya, diffusers names", {}, "sd2"),  # lora_te1_ of OpenCLIP-H's width
        # CLIP-L is the encoder of SD 1.x and the first of SDXL: kohya's prefix decides, the metadata before it.
        (("sd1", "text_encoder"), "kohya, diffusers names", {}, "sdxl"),
        (("sd1", "text_encoder"), "kohya, diffusers names", {"ss_base_model_version": "sd_v1"}, "sd1"),
        (("sd1", "text_encoder"), "kohya, lora_te", {"ss_base_model_version": "sdxl_base_v1-0"}, "sdxl"),
        # ... and only where names and shapes leave it open.
        (("sd2", "text_encoder"), "kohya, lora_te", {"ss_base_model_version": "sd_v1"}, "sd2"),
        (("sd2", "text_encoder"), "kohya, lora_te", {"ss_base_model_version": "sd_v2_v", "ss_v2": "True"}, "sd2_v"),
    ],
)
def test_text_encoders_alone_are_told_by_their_width(
    layers: tuple[str, str], form: str, metadata: dict[str, str], model: str, tmp_path: Path
) -> None:
    tensors = tensors_in(FORMS[form], text_only(*layers), shipped_configs(layers[0]))
    assert identify(header_of(tensors, tmp_path / "l.safetensors", **metadata)).model == model


def test_a_unet_without_cross_attention_is_told_by_its_blocks(tmp_path: Path) -> None:
    for model in ("sd1", "sd2", "sdxl", "sdxl_refiner"):
        takes = lambda part, path: part == "unet" and "attn2" not in path  # noqa: E731
        tensors = tensors_in(FORMS["kohya, diffusers names"], full_size(model, takes=takes), shipped_configs(model))
        assert identify(header_of(tensors, tmp_path / "l.safetensors")).model == model
    # Feed-forward layers of SD 1.x and 2.x are the same: both are named, unless the metadata say which.
    takes = lambda part, path: part == "unet" and ".ff." in path  # noqa: E731
    tensors = tensors_in(FORMS["kohya, diffusers names"], full_size("sd2", takes=takes), shipped_configs("sd2"))
    found = identify(header_of(tensors, tmp_path / "l.safetensors"))
    assert "for Stable Diffusion 1.x or Stable Diffusion 2.x, in kohya form" in found.sentence
    assert identify(header_of(tensors, tmp_path / "l.safetensors", ss_v2="True")).model == "sd2"


def test_an_unpublished_size_is_said(tmp_path: Path) -> None:
    configs = tiny_configs("sdxl")
    tensors = tensors_in(FORMS["kohya, SGM names"], lora_layers("sdxl", configs), configs)
    save_file(tensors, tmp_path / "l.safetensors")
    found = identify(tmp_path / "l.safetensors")
    assert (found.model, found.facts["size"]) == ("sdxl", "unpublished")
    assert "of an unpublished size" in found.sentence
    whole = {CONFIGS_KEY: json.dumps(configs), "modelspec.architecture": "stable-diffusion-xl-v1-base/lora"}
    save_file(tensors, tmp_path / "l.safetensors", whole)
    found = identify(tmp_path / "l.safetensors")
    assert (found.model, "size" in found.facts) == ("sdxl", False)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("unet", "transformer_layers_per_block", 10**9),
        ("unet", "layers_per_block", 10**9),
        ("unet", "layers_per_block", float("inf")),
        ("text_encoder", "num_hidden_layers", 10**9),
    ],
)
def test_configs_of_endless_models_are_ignored(part: str, name: str, value: float, tmp_path: Path) -> None:
    configs = shipped_configs("sdxl")
    tensors = tensors_in(FORMS["kohya, SGM names"], full_size("sdxl"), configs)
    configs[part][name] = value
    path = header_of(tensors, tmp_path / "l.safetensors", **{CONFIGS_KEY: json.dumps(configs)})
    assert identify(path).model == "sdxl"


def test_names_of_nobodys_size_need_all_layers_or_the_metadata(tmp_path: Path) -> None:
    name = "lora_unet_up_blocks_{}_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight"
    shapes = {name.format(0): (2, 7), name.format(1): (2, 7), name.format(2): (2, 7)}  # SD 1.x lacks 0, SDXL 2
    found = identify(write_header(tmp_path / "l.safetensors", shapes))
    assert (found.model, found.family) == ("", "")
    assert "for an unknown model" in found.sentence
    metadata = {"ss_base_model_version": "sd_1.5"}
    assert identify(write_header(tmp_path / "l.safetensors", shapes, metadata=metadata)).model == "sd1"


@pytest.mark.parametrize("kind", ["loha", "lokr"])
@pytest.mark.parametrize("form", ["kohya, SGM names", "LyCORIS", "OneTrainer's raw"])
def test_lycoris_layers_are_read(kind: str, form: str, tmp_path: Path) -> None:
    configs = tiny_configs("sdxl")
    layers = of_kind(lora_layers("sdxl", configs, takes=lambda part, path: part == "unet"), kind)
    tensors = tensors_in(FORMS[form], layers, configs)
    save_file(tensors, tmp_path / "l.safetensors", {CONFIGS_KEY: json.dumps(configs)})
    found = identify(tmp_path / "l.safetensors")
    assert (found.model, found.facts["adapter"].lower(), found.facts["form"]) == ("sdxl", kind, FORMS[form].name)
    content = read(tmp_path / "l.safetensors", "sdxl", configs)
    by_path = {layer.path: layer for layer in content.layers}
    assert all(equal_layers(by_path[layer.path], layer) for layer in layers)


def test_norms_tucker_and_dora_are_read(tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    loras = lora_layers("sd1", configs, takes=lambda part, path: part == "unet")
    for layers, kind in (
        ([*with_tucker(loras), *norm_layers("sd1", configs)], "LoRA"),
        (with_dora(loras), "DoRA (LoRA)"),
        (with_dora(loras, by_input=True), "DoRA (LoRA)"),
    ):
        save_file(tensors_in(FORMS["LyCORIS"], layers, configs), tmp_path / "l.safetensors")
        assert identify(tmp_path / "l.safetensors").facts["adapter"] == kind
        by_path = {layer.path: layer for layer in read(tmp_path / "l.safetensors", "sd1", configs).layers}
        assert len(by_path) == len(layers)
        assert all(equal_layers(by_path[layer.path], layer) for layer in layers)


def test_magnitudes_of_peft_become_dora_scales_per_output(tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    layers = with_dora(
        lora_layers("sd1", configs, takes=lambda part, path: path in ("conv_in", "time_embedding.linear_1"))
    )
    tensors = tensors_in(FORMS["PEFT"], layers, configs)
    for name in [n for n in tensors if n.endswith("magnitude_vector")]:
        tensors[name] = tensors[name].reshape(1, -1, 1, 1) if tensors[name].ndim == 4 else tensors[name].reshape(-1)
    save_file(tensors, tmp_path / "l.safetensors")
    content = read(tmp_path / "l.safetensors", "sd1", configs)
    assert {x.factors[DORA_SCALE].shape for x in content.layers} == {x.factors[DORA_SCALE].shape for x in layers}


def test_nothing_of_a_file_is_lost(tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    layers = lora_layers("sd1", configs)
    beside = {
        "bundle_emb.cat.string_to_param.*": torch.ones(2, 8),
        "lora_unet_nowhere_to_q.lora_down.weight": torch.ones(2, 8),
        "lora_unet_conv_in.on_input": torch.ones(1),
        "note": torch.ones(1),
    }
    tensors = tensors_in(FORMS["kohya, diffusers names"], layers, configs) | beside
    save_file(tensors, tmp_path / "l.safetensors", {"ss_output_name": "mine"})
    content = read(tmp_path / "l.safetensors", "sd1", configs)
    assert content.extra_tensors.keys() == beside.keys() - {"lora_unet_conv_in.on_input"}
    assert (content.unplaced, content.metadata) == (("lora_unet_nowhere_to_q",), {"ss_output_name": "mine"})
    assert content.embeddings.keys() == {"bundle_emb.cat.string_to_param.*"}
    assert "on_input" in next(x for x in content.layers if x.path == "conv_in").factors
    assert identify(tmp_path / "l.safetensors").facts["embeddings"] == "bundled"


def test_the_layers_text_projection_is_read_and_told(tmp_path: Path) -> None:
    layers = full_size("sdxl")
    tensors = tensors_in(FORMS["kohya, diffusers names"], layers, shipped_configs("sdxl"))
    assert "lora_te2_text_projection.lora_down.weight" in tensors
    assert len(layers) == 794 + 72 + 192 + 1
    assert identify(header_of(tensors, tmp_path / "l.safetensors")).facts["layers"] == "1059"


def test_two_names_of_one_layer_are_not_merged(tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    layers = lora_layers("sd1", configs, takes=lambda part, path: path == "conv_in")
    tensors = tensors_in(FORMS["kohya, SGM names"], layers, configs)
    save_file(tensors | tensors_in(FORMS["kohya, diffusers names"], layers, configs), tmp_path / "l.safetensors")
    content = read(tmp_path / "l.safetensors", "sd1", configs)
    assert (len(content.layers), content.unplaced) == (1, ("lora_unet_input_blocks_0_0",))


@pytest.mark.parametrize(
    ("settings", "alpha"),
    [
        ({"unet.lora_alpha": 3}, 3.0),
        ({"lora_alpha": 3}, 3.0),
        ({"unet.lora_alpha": 3, "unet.alpha_pattern": {"conv_in": 5}}, 5.0),
        ({"unet.lora_alpha": 3, "unet.alpha_pattern": {"^conv_in": 5, "in": 7}}, 5.0),
        ({"unet.lora_alpha": 3, "unet.use_rslora": True}, 6.0),  # by the root of rank 4, and not by the rank
        ({"unet.lora_alpha": "three"}, None),
        ([], None),
    ],
)
def test_the_alpha_of_peft_is_in_its_settings(settings: Any, alpha: float | None, tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    layers = lora_layers("sd1", configs, ranks=(4,), takes=lambda part, path: path == "conv_in")
    save_file(
        tensors_in(FORMS["PEFT"], layers, configs),
        tmp_path / "l.safetensors",
        {"lora_adapter_metadata": json.dumps(settings)},
    )
    [layer] = read(tmp_path / "l.safetensors", "sd1", configs).layers
    assert layer.alpha == alpha


@pytest.mark.parametrize("alpha", ["NaN", "Infinity", "-Infinity", "1e30", "1" + "0" * 400, "1" + "0" * 5000])
@pytest.mark.parametrize("setting", ['{"unet.lora_alpha": %s}', '{"unet.alpha_pattern": {"conv_in": %s}}'])
def test_an_impossible_alpha_in_the_settings_is_an_error(setting: str, alpha: str, tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    layers = lora_layers("sd1", configs, takes=lambda part, path: path == "conv_in")
    tensors = tensors_in(FORMS["PEFT"], layers, configs)
    save_file(tensors, tmp_path / "l.safetensors", {"lora_adapter_metadata": setting % alpha})
    with pytest.raises(DarkroomError, match=r"l\.safetensors has .* at unet\.conv_in: its alpha is"):
        read(tmp_path / "l.safetensors", "sd1", configs)


@pytest.mark.parametrize("alpha", [float("nan"), float("inf"), -1e30])
def test_an_impossible_alpha_of_a_layer_is_an_error(alpha: float, tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    layers = lora_layers("sd1", configs, takes=lambda part, path: path == "conv_in")
    tensors = tensors_in(FORMS["kohya, diffusers names"], layers, configs)
    save_file(tensors | {"lora_unet_conv_in.alpha": torch.tensor(alpha)}, tmp_path / "l.safetensors")
    with pytest.raises(DarkroomError, match=r"l\.safetensors has .* at unet\.conv_in: its alpha is"):
        read(tmp_path / "l.safetensors", "sd1", configs)


def test_peft_keeps_its_settings_beside_its_file(tmp_path: Path) -> None:
    configs = tiny_configs("sd1")
    layers = lora_layers("sd1", configs, takes=lambda part, path: path == "conv_in")
    save_file(tensors_in(FORMS["raw PEFT"], layers, configs), tmp_path / "adapter_model.safetensors")
    assert read(tmp_path / "adapter_model.safetensors", "sd1", configs).layers[0].alpha is None
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 8}))
    assert read(tmp_path / "adapter_model.safetensors", "sd1", configs).layers[0].alpha == 8.0
