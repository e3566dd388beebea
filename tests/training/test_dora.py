"""DoRA: the weight of equation 5 of the paper and its gradients, on each axis, for each adapter; its files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lycoris.functional.general import weight_decompose
from torch import nn
from torch.nn import functional

from modules.adapters.changes import weight_change
from modules.adapters.delta_adapter import DeltaAdapter
from modules.adapters.kept_layers import attach_kept
from modules.adapters.lokr import Lokr
from modules.adapters.lokr_layers import LOKR_KIND
from modules.adapters.lora import Lora
from modules.adapters.lora_layers import LORA_KIND, LoraAdapter
from modules.adapters.registry import ADAPTERS
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.data.dataset import Dataset
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_types import DORA_SCALE
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over
from tests.builders.pipelines import load_tiny, sample_in_diffusers, sample_with_ours, stock_pipeline
from tests.builders.standalone import put_adapter_on
from tests.parity.test_lora_files_in_diffusers import NOW, PROMPT
from trainer.export.adapter import AdapterExporter
from trainer.export.exporter import SaveMoment

LAYERS = ["linear", "conv"]
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "lora": (LORA_KIND, Lora, {"rank": 4, "alpha": 3.0}),
    "pissa": (LORA_KIND, Lora, {"rank": 4, "alpha": 3.0, "init": "pissa"}),
    "lokr": (LOKR_KIND, Lokr, {"rank": 2, "alpha": 3.0}),
}
Any_ = LoraAdapter | DeltaAdapter


def block() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"linear": nn.Linear(24, 64), "conv": nn.Conv2d(24, 64, 3, stride=2, padding=1)})


def inputs(layer: str) -> torch.Tensor:
    shape = (2, 5, 24) if layer == "linear" else (2, 24, 9, 7)
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def attached(module: nn.Module, kind: str, *, moved: bool = True, **settings: Any) -> Any_:
    own_kind, own, base = KINDS[kind]
    adapter: Any_ = own_kind.attach("unet", module, LAYERS, own(**base, decompose=True, **settings), seed=1)
    generator = torch.Generator().manual_seed(3)
    for parameter in adapter.parameters().values() if moved else ():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.2
    return adapter


def stored(adapter: Any_, layer: str) -> AdapterLayer:
    layers = adapter.stored_layers({n: p.detach() for n, p in adapter.parameters().items()})
    return next(found for found in layers if found.path == layer)


def without_magnitudes(stored_layer: AdapterLayer, weight: torch.Tensor) -> torch.Tensor:
    """The change of the direction, V + dV of the paper's eq. 5, from the factors of the file."""
    factors = {name: factor for name, factor in stored_layer.factors.items() if name != DORA_SCALE}
    change = weight_change(factors, stored_layer.alpha, weight)
    assert change is not None
    return change


def applied(own: nn.Linear | nn.Conv2d, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if isinstance(own, nn.Linear):
        return functional.linear(x, weight, own.bias)
    return functional.conv2d(x, weight, own.bias, own.stride, own.padding)


@pytest.mark.parametrize("on_outputs", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_layer_is_that_of_the_papers_weight(kind: str, layer: str, on_outputs: bool) -> None:
    module, plain, x = block(), block(), inputs(layer)
    adapter = attached(module, kind, decompose_output_axis=on_outputs)
    own, file = plain[layer], stored(adapter, layer)
    assert isinstance(own, nn.Linear | nn.Conv2d)
    changed = own.weight.detach() + without_magnitudes(file, own.weight)
    axes = (1, *range(2, changed.ndim)) if on_outputs else (0, *range(2, changed.ndim))
    weight = file.factors[DORA_SCALE] * changed / changed.square().sum(axes, keepdim=True).sqrt()  # eq. 5
    with torch.no_grad():
        torch.testing.assert_close(module[layer](x), applied(own, x, weight), rtol=1e-4, atol=1e-5)
        assert (module[layer](x) - own(x)).abs().max() > 0.05
        # LyCORIS decomposes the merged weight of the file in the same way.
        theirs = weight_decompose(changed, file.factors[DORA_SCALE], 1, on_outputs)
        torch.testing.assert_close(theirs, weight, rtol=1e-5, atol=1e-6)
    with adapter.disabled():
        assert torch.equal(module[layer](x), own(x))
    # What sampling and the start of another run do with the file.
    attach_kept({"unet": plain}, [file], where="file")
    torch.testing.assert_close(plain[layer](x), module[layer](x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("on_outputs", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_are_those_with_a_constant_norm(layer: str, on_outputs: bool) -> None:
    """Section 4.3 of the paper: the norm is no part of the gradient."""
    module, plain, x = block(), block(), inputs(layer)
    adapter = attached(module, "lora", decompose_output_axis=on_outputs)
    own, file = plain[layer], stored(adapter, layer)
    assert isinstance(own, nn.Linear | nn.Conv2d)
    module[layer](x).square().mean().backward()
    down, up, magnitudes = (
        file.factors[n].clone().requires_grad_() for n in ("lora_down.weight", "lora_up.weight", DORA_SCALE)
    )
    changed = own.weight.detach() + (up.flatten(1) @ down.flatten(1)).reshape(own.weight.shape) * 0.75
    axes = (1, *range(2, changed.ndim)) if on_outputs else (0, *range(2, changed.ndim))
    norms = changed.detach().square().sum(axes, keepdim=True).sqrt()
    applied(own, x, magnitudes * changed / norms).square().mean().backward()
    expected = {"lora_A": down.grad, "lora_B": up.grad, "magnitudes": magnitudes.grad}
    for name, parameter in adapter.parameters().items():
        if layer in name:
            torch.testing.assert_close(
                parameter.grad, next(g for n, g in expected.items() if n in name), rtol=1e-3, atol=1e-6
            )


@pytest.mark.parametrize("on_outputs", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_fresh_one_changes_nothing(kind: str, on_outputs: bool, dtype: str) -> None:
    module, plain = block(), block()
    adapter = attached(module, kind, moved=False, decompose_output_axis=on_outputs, dtype=dtype)
    for layer in LAYERS:
        assert torch.equal(module[layer](inputs(layer)), plain[layer](inputs(layer)))
    assert {p.dtype for n, p in adapter.parameters().items() if "magnitudes" in n} == {torch.float32}


@pytest.mark.parametrize("has_eps", [True, False])
def test_a_row_of_zeros_stays_finite(has_eps: bool) -> None:
    module = block()
    module["linear"].weight.data[3] = 0.0
    adapter = attached(module, "lora", moved=False, decompose_norm_eps=has_eps)
    module["linear"](inputs("linear")).square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in adapter.parameters().values())
    assert module["linear"](inputs("linear")).isfinite().all()


def test_a_kept_bias_is_not_scaled() -> None:
    module, x = block(), inputs("conv")
    bias = torch.linspace(-1, 1, 64)
    attach_kept({"unet": module}, [AdapterLayer("unet", "conv", {"diff_b": bias})], where="file")
    alone = block()
    attached(module, "lora")
    attached(alone, "lora")
    with torch.no_grad():
        torch.testing.assert_close(module["conv"](x), alone["conv"](x) + bias[:, None, None], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["lora", "lokr"])
def test_a_run_with_dora_continues_its_file_and_that_of_an_adapter_without(kind: str) -> None:
    own_kind, own, base = KINDS[kind]
    spec = ADAPTERS[kind]
    for decompose in (True, False):
        first, second = block(), block()
        adapter = attached(first, kind, decompose_output_axis=False)
        if not decompose:  # an adapter of the same values without magnitudes
            first = block()
            other = own_kind.attach("unet", first, LAYERS, own(**base), seed=1)
            for name, parameter in other.parameters().items():
                parameter.data.copy_(adapter.parameters()[name].data)
            adapter = other
        settings = own(**{**base, "alpha": 5.0}, decompose=True)
        trainable = spec.trainable_with(settings)
        assert trainable is not None
        start = [stored(adapter, layer) for layer in LAYERS]
        assert all(trainable(layer.factors) == layer.factors.keys() for layer in start)
        own_kind.attach("unet", second, LAYERS, settings, seed=2, start=start, where="file")
        for layer in LAYERS:
            torch.testing.assert_close(second[layer](inputs(layer)), first[layer](inputs(layer)), rtol=1e-4, atol=1e-5)
        has_scale = any(DORA_SCALE in layer.factors for layer in start)
        assert has_scale is decompose
        # A run without DoRA does not train layers that have its magnitudes: they are kept.
        plain = spec.trainable_with(own(**base))
        assert plain is not None
        assert bool(plain(start[0].factors)) is not has_scale


def test_magnitudes_that_do_not_fit_are_refused() -> None:
    module = block()
    start = [stored(attached(block(), "lora"), layer) for layer in LAYERS]
    broken = AdapterLayer("unet", "conv", {**start[1].factors, DORA_SCALE: torch.ones(7, 1, 1, 1)}, 3.0)
    with pytest.raises(DarkroomError, match=r"file does not fit this model"):
        LORA_KIND.attach("unet", module, LAYERS, Lora(rank=4, decompose=True), seed=1, start=[broken], where="file")


def test_diffusers_format_holds_magnitudes_of_outputs_only() -> None:
    config, _ = set_path(Config(), "adapter", {"name": "lora", "decompose": True, "decompose_output_axis": False})
    config = laid_over(config, {"output": {"format": "diffusers"}})
    assert [p.path for p in problems_of(config) if "magnitudes" in p.message] == ["output.format"]
    config = laid_over(config, {"adapter": {"decompose_output_axis": True}})
    assert not [p for p in problems_of(config) if "magnitudes" in p.message]


@pytest.mark.full
@pytest.mark.parametrize(
    "options", [{"decompose": True, "decompose_output_axis": True}, {"rank_stabilized": True, "init": "pissa"}], ids=str
)
def test_stock_diffusers_samples_the_trainers_image(tiny_sd: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """DoRA in the diffusers form; in both forms a LoRA with ranks by layer, each with a strength of its own."""
    family = load_tiny(tiny_sd)
    settings = {"rank": 4, "alpha": 6.0, "layer_ranks": "attn2 = 2:5\nff = 3:1", "layers": "all", **options}
    config, _ = set_path(Config(), "adapter", {"name": "lora", **settings})
    generator = torch.Generator().manual_seed(1)
    unet = family.parts["unet"].module
    targets = [n for n, m in unet.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    adapter = LORA_KIND.attach("unet", unet, targets, config.adapter, seed=5)
    for name, parameter in adapter.parameters().items():
        if "lora_A" not in name:
            parameter.data += torch.randn(parameter.shape, generator=generator) * (0.1 if "lora_B" in name else 0.05)
    ours = sample_with_ours(family, PROMPT)
    values = {n: p.detach() for n, p in adapter.parameters().items()}
    plain = sample_in_diffusers(stock_pipeline(tiny_sd), PROMPT)
    assert abs(ours - plain).max() > 10
    for form in ("diffusers", "kohya"):
        config = laid_over(config, {"output": {"dtype": "float32", "format": form}})
        exporter = AdapterExporter([adapter], family.lora_naming, config, Dataset((), (), 1))
        exporter.save(tmp_path / f"{form}.safetensors", values, SaveMoment(NOW, step=3, epoch=1))
        if form == "diffusers" or "decompose" not in options:  # it drops the magnitudes of kohya's form
            pipe = stock_pipeline(tiny_sd)
            pipe.load_lora_weights(tmp_path, weight_name=f"{form}.safetensors")
            assert abs(ours - sample_in_diffusers(pipe, PROMPT)).max() <= 1, form
        again = load_tiny(tiny_sd)
        put_adapter_on(again, tmp_path / f"{form}.safetensors")
        assert abs(ours - sample_with_ours(again, PROMPT)).max() <= 1, form


def test_its_magnitudes_begin_as_the_norms() -> None:
    module = block()
    adapter = attached(module, "lora", moved=False, decompose_output_axis=False)
    weight = block()["conv"].weight
    assert isinstance(weight, torch.Tensor)
    norms = torch.stack([weight[:, i].norm() for i in range(24)]) + torch.finfo(torch.float32).eps
    found = adapter.parameters()["unet.conv.dora.magnitudes"]
    assert found.shape == (1, 24, 1, 1)
    torch.testing.assert_close(found.flatten(), norms)
    assert math.prod(adapter.parameters()["unet.linear.dora.magnitudes"].shape) == 24
