"""Starting from adapter files of every form: each layer of the model changes as the file says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file

from modules.adapters.delta_adapter import DeltaAdapter
from modules.families.kinds.identify import identify
from modules.families.parts.lora_names import file_path
from modules.families.protocol import ModelFamily
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN
from modules.formats.adapter_types import DORA_SCALE
from modules.system.errors import DarkroomError
from tests.builders.adapter_forms import (
    FORMS,
    change_of,
    lora_layers,
    of_kind,
    processor_tensors,
    tensors_in,
    with_tucker,
)
from tests.builders.pipelines import load_tiny
from tests.builders.standalone import put_adapter_on

pytestmark = pytest.mark.usefixtures("one_thread")


def configs_of(family: ModelFamily) -> dict[str, Any]:
    configs = {name: part.module.config for name, part in family.parts.items()}
    return {n: c.to_dict() if hasattr(c, "to_dict") else dict(c) for n, c in configs.items()}


def changes(family: ModelFamily) -> dict[tuple[str, str], torch.Tensor]:
    """What the LoRA layers of a model add to its weights."""
    return {
        (part, file_path(part, name)): (
            layer.lora_B["default"].weight.flatten(1).double() @ layer.lora_A["default"].weight.flatten(1).double()
        ).detach()
        * layer.scaling["default"]
        for part, loaded in family.parts.items()
        for name, layer in loaded.module.named_modules()
        if isinstance(layer, LoraLayer)
    }


def assert_changes(family: ModelFamily, layers: list[AdapterLayer]) -> None:
    found = changes(family)
    assert found.keys() == {(layer.part, layer.path) for layer in layers}
    for layer in layers:
        torch.testing.assert_close(found[layer.part, layer.path], change_of(layer), rtol=0, atol=1e-5)


@pytest.mark.daily(5)
@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_lora_of_every_form_is_put_on_a_model(form: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model = "sdxl" if "text_encoder_2" in FORMS[form].holds else "sd1"
    family = load_tiny(request.getfixturevalue(f"tiny_{'sdxl' if model == 'sdxl' else 'sd'}"))
    configs = configs_of(family)
    layers = lora_layers(model, configs, ranks=(2, 3), takes=lambda part, path: part in FORMS[form].holds)
    if not FORMS[form].alphas:
        layers = [AdapterLayer(x.part, x.path, x.factors) for x in layers]
    save_file(tensors_in(FORMS[form], layers, configs), tmp_path / "l.safetensors")
    put_adapter_on(family, tmp_path / "l.safetensors")
    assert_changes(family, layers)


@pytest.mark.parametrize("kind", ["processors", "tucker", "bundled"])
def test_other_files_of_lora_are_put_on_a_model(kind: str, tiny_sd: Path, tmp_path: Path) -> None:
    family = load_tiny(tiny_sd)
    configs = configs_of(family)
    layers = lora_layers("sd1", configs, takes=lambda part, path: kind != "processors" or ".attn" in path, alpha=2.0)
    layers = with_tucker(layers) if kind == "tucker" else layers
    tensors = (
        processor_tensors(layers, prefix="unet.")
        if kind == "processors"
        else tensors_in(FORMS["kohya, lora_te"], layers, configs)
    )
    if kind == "bundled":
        tensors["bundle_emb.cat.string_to_param.*"] = torch.ones(1, 24)
    save_file(tensors, tmp_path / "l.safetensors")
    put_adapter_on(family, tmp_path / "l.safetensors")
    assert_changes(family, layers)


@pytest.mark.parametrize("form", ["kohya, SGM names", "LyCORIS", "OneTrainer's raw"])
def test_lokr_of_every_form_is_put_on_a_model(form: str, tiny_sd: Path, tmp_path: Path) -> None:
    family = load_tiny(tiny_sd)
    configs = configs_of(family)
    layers = of_kind(lora_layers("sd1", configs, takes=lambda part, path: part == "unet"), "lokr")
    save_file(tensors_in(FORMS[form], layers, configs), tmp_path / "l.safetensors")
    [adapter] = put_adapter_on(family, tmp_path / "l.safetensors")
    assert isinstance(adapter, DeltaAdapter)
    assert {layer.path for layer in layers} == adapter.deltas.keys()


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_layers_with_an_alpha_of_0_change_nothing(kind: str, tiny_sd: Path, tmp_path: Path) -> None:
    family = load_tiny(tiny_sd)
    configs = configs_of(family)
    layers = lora_layers("sd1", configs, takes=lambda part, path: part == "unet" and "to_q" in path)
    layers = layers if kind == "lora" else of_kind(layers, kind)
    layers = [replace(layer, alpha=0.0) for layer in layers]
    save_file(tensors_in(FORMS["kohya, lora_te"], layers, configs), tmp_path / "l.safetensors")
    before = output_of(family)
    assert put_adapter_on(family, tmp_path / "l.safetensors")
    assert torch.equal(output_of(family), before)


def test_a_dora_of_another_kind_is_one_of_this_kind(tiny_sd: Path, tmp_path: Path) -> None:
    configs = configs_of(load_tiny(tiny_sd))
    layers = of_kind(lora_layers("sd1", configs, takes=lambda part, path: part == "unet"), "loha")
    dora = [replace(x, factors={**x.factors, DORA_SCALE: torch.ones(len(x.factors["hada_w1_a"]), 1)}) for x in layers]
    save_file(tensors_in(FORMS["kohya, lora_te"], dora, configs), tmp_path / "l.safetensors")
    assert identify(tmp_path / "l.safetensors").facts["adapter"] == "DoRA (LoHa)"


def output_of(family: ModelFamily) -> torch.Tensor:
    unet = family.parts["unet"].module
    generator = torch.Generator().manual_seed(0)
    noisy = torch.randn(1, 4, 8, 8, generator=generator)
    text = torch.randn(1, 3, unet.config.cross_attention_dim, generator=generator)
    with torch.no_grad():
        found: torch.Tensor = unet(noisy, torch.tensor([7]), text).sample
    return found


def put(family: ModelFamily, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "l.safetensors")
    put_adapter_on(family, folder / "l.safetensors")


def test_layers_of_several_ranks_keep_them(tiny_sd: Path, tmp_path: Path) -> None:
    family = load_tiny(tiny_sd)
    configs = configs_of(family)
    layers = lora_layers("sd1", configs, ranks=(1, 3, 4), takes=lambda part, path: part == "unet")
    put(family, tensors_in(FORMS["kohya, lora_te"], layers, configs), tmp_path)
    assert_changes(family, layers)
    found = {(p, n): m for p, part in family.parts.items() for n, m in part.module.named_modules()}
    assert {layer.rank for layer in layers} == {1, 3, 4}
    assert all(found[layer.part, layer.path].r["default"] == layer.rank for layer in layers)


def test_a_one_by_one_convolution_stored_as_a_matrix(tiny_sd: Path, tmp_path: Path) -> None:
    family = load_tiny(tiny_sd)
    configs = configs_of(family)
    layers = lora_layers("sd1", configs, takes=lambda part, path: path.endswith("proj_in"))
    assert {layer.factors[DOWN].ndim for layer in layers} == {4}
    tensors = {n: t.flatten(1) if t.ndim == 4 else t for n, t in tensors_in(FORMS["PEFT"], layers, configs).items()}
    put(family, tensors, tmp_path)
    assert_changes(family, [AdapterLayer(x.part, x.path, x.factors) for x in layers])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {n: v for n, v in t.items() if not n.endswith("lora_up.weight")}, "is incomplete"),
        (lambda t: {n: v[..., :1] if n.endswith("up.weight") else v for n, v in t.items()}, "have different ranks"),
        (lambda t: {n: v[:, :3] if n.endswith("down.weight") else v for n, v in t.items()}, "does not fit this model"),
        (
            lambda t: {n.replace("lora_unet_", "lora_unet_x"): v for n, v in t.items()},
            "layers that this model",
        ),
        (lambda t: t | {"lora_unet_conv_in.alpha": torch.ones(3)}, "is not one number"),
    ],
)
def test_damaged_and_other_files_are_reported(change: Any, message: str, tiny_sd: Path, tmp_path: Path) -> None:
    family = load_tiny(tiny_sd)
    configs = configs_of(family)
    layers = lora_layers("sd1", configs, takes=lambda part, path: path in ("conv_in", "time_embedding.linear_1"))
    with pytest.raises(DarkroomError, match=message):
        put(family, change(tensors_in(FORMS["kohya, lora_te"], layers, configs)), tmp_path)
