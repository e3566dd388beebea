"""Adapters on quantized parts: with every way of saving memory, every adapter, and in whole runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modules.adapters.loha import Loha
from modules.adapters.lokr import Lokr
from modules.adapters.lora import Lora
from modules.adapters.oft import Oft
from modules.adapters.protocol import Adapter, kind_of
from modules.adapters.registry import ADAPTERS
from modules.adapters.targets import target_layers
from modules.families.protocol import ModelFamily, PartMemory
from modules.memory.checkpointing import offloaded_weights
from modules.memory.guard import DeviceGuard
from modules.quantization.chosen import ChosenFormat
from modules.quantization.linear import QuantizedLinear
from modules.quantization.registry import FORMATS
from modules.settings.layer_filter import EVERYTHING
from modules.system.devices import CPU, Device
from tests.builders.pipelines import load_tiny
from tests.builders.runs import assert_equal_tensors
from tests.training.test_checkpointing import predicted, trained_parts
from tests.training.test_compile import One, compilation
from tests.training.test_layer_offload import placed
from trainer.run.quantized import quantize_parts

TEMP = Device("cpu:1")
SETTINGS = {
    "lora": Lora(rank=2),
    "pissa": Lora(rank=2, init="pissa"),
    "dora": Lora(rank=2, decompose=True),
    "dora of inputs": Lora(rank=2, decompose=True, decompose_output_axis=False),
    "lokr": Lokr(rank=1, decompose=True),
    "loha": Loha(rank=1, decompose=True),
    "oft": Oft(block_size=4, rescale=True),
    "oft of inputs": Oft(block_size=4, rotates="inputs"),
}
FORMAT_NAMES = list(FORMATS)


@pytest.fixture(autouse=True)
def nothing_left_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def quantized(model: Path, name: str) -> ModelFamily:
    family: ModelFamily = load_tiny(model)
    quantize_parts(family, {part: ChosenFormat(FORMATS[name], EVERYTHING) for part in trained_parts(family)})
    return family


def unquantized(family: ModelFamily) -> ModelFamily:
    """Put plain layers with the weights of the quantized ones in their place."""
    for part in family.parts.values():
        for path, layer in list(part.module.named_modules()):
            if isinstance(layer, QuantizedLinear):
                plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
                plain.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
                plain.bias = layer.bias  # type: ignore[assignment]
                parent, _, attribute = path.rpartition(".")
                setattr(part.module.get_submodule(parent), attribute, plain)
    return family


def adapted(family: ModelFamily, settings: Any) -> list[Adapter]:
    """Put an adapter on every part that does something: no weight of it is zero."""
    generator, adapters = torch.Generator().manual_seed(1), []
    for name in trained_parts(family):
        part = family.parts[name]
        targets = target_layers(part.module, part.spec.role, layers=EVERYTHING, reaches=part.reaches)
        adapter = kind_of(ADAPTERS[settings.name]).attach(name, part.module, targets, settings, seed=3)
        for parameter in adapter.parameters().values():
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.05
        part.module.train()
        adapters.append(adapter)
    return adapters


def gradients(family: ModelFamily, adapters: list[Adapter], **options: Any) -> dict[str, torch.Tensor]:
    parameters = {n: p for a in adapters for n, p in a.parameters().items()}
    for parameter in parameters.values():
        parameter.grad = None
    predicted(family, **options).backward()
    found = {n: p.grad for n, p in parameters.items()}
    assert all(g is not None for g in found.values())
    return {n: g.clone() for n, g in found.items() if g is not None}


@functools.cache
def with_lora(model: Path, name: str) -> tuple[ModelFamily, list[Adapter], dict[str, torch.Tensor]]:
    family = quantized(model, name)
    adapters = adapted(family, SETTINGS["lora"])
    return family, adapters, gradients(family, adapters)


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_adapter_trains_as_beside_plain_layers_with_the_same_weights(tiny_sd: Path, kind: str) -> None:
    family, plain = quantized(tiny_sd, "nfloat4"), unquantized(quantized(tiny_sd, "nfloat4"))
    adapters, others = adapted(family, SETTINGS[kind]), adapted(plain, SETTINGS[kind])
    expected = gradients(plain, others)
    for name, gradient in gradients(family, adapters).items():
        assert torch.allclose(gradient, expected[name], rtol=1e-3, atol=1e-6 + 1e-4 * expected[name].abs().max()), name
    for adapter, other in zip(adapters, others, strict=True):  # what is written to files
        with adapter.disabled(), other.disabled():
            assert torch.allclose(predicted(family), predicted(plain), rtol=1e-4)


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("mode", ["block", "whole"])
def test_checkpointed_gradients_are_the_same_bits(tiny_sdxl: Path, name: str, mode: Any) -> None:
    family, adapters, plain = with_lora(tiny_sdxl, name)
    for offloads in (False, True):
        memory = PartMemory(mode, offload_activations=offloads)
        family.set_memory(dict.fromkeys(trained_parts(family), memory), train_device=CPU, temp_device=TEMP)
        assert_equal_tensors(gradients(family, adapters), plain)
    family.set_memory({}, train_device=CPU, temp_device=TEMP)


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_packed_weights_are_offloaded_and_fetched(tiny_sd: Path, name: str) -> None:
    family = quantized(tiny_sd, name)
    adapters = adapted(family, SETTINGS["lora"])
    plain = gradients(family, adapters)
    own = {n.removeprefix("unet.") for n in adapters[0].parameters() | adapters[-1].parameters()}
    memory = PartMemory("block", offload_fraction=1.0, resident=frozenset(own))
    family.set_memory({"unet": memory}, train_device=CPU, temp_device=TEMP)
    guard = DeviceGuard()
    with guard:
        placement = placed(family, guard)
        assert_equal_tensors(gradients(family, adapters), plain)
        placement.close()
    offloaded = {id(weight) for weight in offloaded_weights(family.parts["unet"].module)}
    layers = [m for m in family.parts["unet"].module.modules() if isinstance(m, QuantizedLinear)]
    assert any(id(layer.packed) in offloaded and id(layer.scales) in offloaded for layer in layers)


@pytest.mark.parametrize(
    "name", [n if n == "nfloat4" else pytest.param(n, marks=pytest.mark.full) for n in FORMAT_NAMES]
)
def test_compiled_blocks_compute_the_same(tiny_sd: Path, name: str) -> None:
    family = quantized(tiny_sd, name)
    adapters = adapted(family, SETTINGS["lora"])
    plain = gradients(family, adapters)
    for mode in ("off", "block"):
        compiled = compilation(One)
        family.set_memory({"unet": PartMemory(mode, compilation=compiled)}, train_device=CPU, temp_device=TEMP)
        found = gradients(family, adapters)
        assert not compiled.failure
        assert compiled.counts.num_blocks == 1
        for key, gradient in found.items():
            assert torch.allclose(gradient, plain[key], rtol=1e-3, atol=1e-7), key
        compiled.close()
