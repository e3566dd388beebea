"""LoRA (Hu et al. 2021, eq. 3): `h = W x + (alpha / rank) B A x`, through peft's layers.

peft's layers are what diffusers itself loads a LoRA into, so what is trained here runs the same code there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from modules.system.devices import CPU
from modules.system.global_rng import seeded_global_rng

ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class LoraShape:
    """What decides a LoRA's layers."""

    rank: int
    alpha: float
    dropout: float
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """The LoRA layers of one part: trainable, while the part itself is frozen."""

    part: str
    module: nn.Module
    shape: LoraShape

    def layers(self) -> Iterator[tuple[str, Any]]:
        """Yield the dotted name and the LoRA layer of every layer that has one."""
        for name, layer in self.module.named_modules():
            if isinstance(layer, LoraLayer):
                yield name, layer

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by the part's name and their dotted name in it."""
        return {f"{self.part}.{n}": p for n, p in self.module.named_parameters() if f".{ADAPTER}." in n}

    def factors(self, values: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return A (down) and B (up) of every layer out of `values`, which are named as `parameters` names them."""
        return {
            name: (
                values[f"{self.part}.{name}.lora_A.{ADAPTER}.weight"],
                values[f"{self.part}.{name}.lora_B.{ADAPTER}.weight"],
            )
            for name, _ in self.layers()
        }

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Be without the adapter for a while, for a reference prediction; it is back also after an exception.

        No gradient is recorded inside: a backward pass through a disabled adapter would give it none, silently.
        """
        layers = [layer for _, layer in self.layers()]
        with torch.no_grad():
            for layer in layers:
                layer.enable_adapters(False)
            try:
                yield
            finally:
                for layer in layers:
                    layer.enable_adapters(True)


def attach_lora(part: str, module: nn.Module, targets: list[str], shape: LoraShape, *, seed: int) -> LoraAdapter:
    """Put a LoRA beside the target layers of a frozen module, in place, and return it.

    A is drawn as in Hu et al. (Kaiming uniform) from `seed` alone, B is zero: at first the model is what it was.
    """
    config = LoraConfig(
        r=shape.rank,
        lora_alpha=shape.alpha,  # annotated int, but only ever divided by the rank
        lora_dropout=shape.dropout,
        target_modules=targets,
        bias="none",
    )
    module.requires_grad_(False)
    with seeded_global_rng(seed, CPU):
        inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    adapter = LoraAdapter(part, module, shape)
    for parameter in adapter.parameters().values():
        parameter.data = parameter.data.to(shape.dtype)
        parameter.requires_grad_(True)
    return adapter
