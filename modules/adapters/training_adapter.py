"""A training adapter: the LoRA of a distilled model that is part of it while it trains, and not when it is sampled.

Trained directly, a distilled model loses its distillation. Such a LoRA undoes it beforehand, so that what is trained on
top of it need not. Its change is added to the weights before they are quantized, and costs nothing in training; in
samples it is taken away from the outputs of the layers, which is the same as the weights without it, except for
rounding. Layers that keep the packed weights of a file get it as an addition to their outputs while they train.

The factors are outside the model's modules: nothing that saves, trains, shards or offloads the model sees them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from modules.adapters.changes import bias_change, does_not_fit, weight_change, weight_shape
from modules.adapters.kept_layers import KeptLayer
from modules.adapters.stored_header import reason_if_outside
from modules.adapters.tools.opening import read_for_model, require_linear
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_targets import AdapterTargets
from modules.system.errors import DarkroomError

Use = Literal["training", "sampling", "other weights"]


class _LayerChange(nn.Module):
    """The change of one layer, and whether its weight contains it."""

    def __init__(self, kept: KeptLayer, *, is_merged: bool, strength: float) -> None:
        super().__init__()
        self.kept = kept
        self.is_merged = is_merged
        self.strength = strength

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return the output of a layer with the change added or taken away: its forward hook."""
        if self.strength == 0.0:
            return output
        change: torch.Tensor = self.kept(layer, inputs[0].to(torch.float32))
        return output + (self.strength * change).to(output.dtype)


class TrainingAdapter:
    """The training adapter of a loaded model's denoiser. `weights` are its factors, which a `Placement` moves."""

    def __init__(self, where: str, denoiser: nn.Module, layers: Sequence[AdapterLayer]) -> None:
        """Add the changes of the file named `where` to the weights of a denoiser, in place.

        Raises DarkroomError if one does not fit.
        """
        self.where = where
        self._changes = {layer.path: _merge(denoiser.get_submodule(layer.path), layer, where) for layer in layers}
        self.weights = nn.ModuleList(self._changes.values()).requires_grad_(False)

    @property
    def is_added_in_training(self) -> bool:
        """Whether a layer keeps packed weights, so that its change is added to its outputs in training."""
        return any(not change.is_merged for change in self._changes.values())

    def attach(self, denoiser: nn.Module) -> None:
        """Put the changes on the layers, once these have their final weights and before any adapter."""
        for path, change in self._changes.items():
            denoiser.get_submodule(path).register_forward_hook(change.add_to)

    @contextmanager
    def used_for(self, use: Use) -> Iterator[None]:
        """Return a context in which the adapter is off, as for samples.

        With "other weights" the model has the weights of another one, which do not contain it.
        """
        self._set(use)
        try:
            yield
        finally:
            self._set("training")

    def _set(self, use: Use) -> None:
        for change in self._changes.values():
            change.strength = _strength(use, is_merged=change.is_merged)


def read_training_adapter(path: Path, targets: AdapterTargets, denoiser: str) -> list[AdapterLayer]:
    """Return the layers of a training adapter for a model with these layers; `denoiser` is the name of that part.

    Raises DarkroomError for a file of another model, with layers that the model or its denoiser lacks, or whose change
    depends on the weights, so that it could not be taken away again.
    """
    content = read_for_model(path, targets)
    places = [(layer.part, layer.path) for layer in content.layers]
    message, advice = reason_if_outside(path.name, content.unplaced, places, denoiser)
    if message:
        raise DarkroomError(message, advice=advice)
    require_linear(path.name, content.layers, "used as a training adapter")
    return list(content.layers)


def _strength(use: Use, *, is_merged: bool) -> float:
    """Return the factor with which the change is added to the outputs of a layer: -1 takes the merged one away."""
    if use == "other weights":
        return 0.0
    return (0.0 if is_merged else 1.0) - (1.0 if use == "sampling" else 0.0)


@torch.no_grad()
def _merge(target: nn.Module, layer: AdapterLayer, where: str) -> _LayerChange:
    weight = getattr(target, "weight", None)
    if not isinstance(weight, torch.Tensor):
        raise does_not_fit(layer, (), where)
    kept = KeptLayer(layer, weight_shape(target), where=where)
    is_merged = not weight.is_meta
    if is_merged:
        _add(weight, target, layer, where)
    return _LayerChange(kept, is_merged=is_merged, strength=_strength("training", is_merged=is_merged))


def _add(weight: torch.Tensor, target: nn.Module, layer: AdapterLayer, where: str) -> None:
    try:
        change, of_bias = weight_change(layer.factors, layer.alpha, weight), bias_change(layer.factors)
        if change is not None:
            weight.copy_(weight.float() + change.reshape(weight.shape))
        if of_bias is not None:
            bias = target.bias
            assert isinstance(bias, torch.Tensor)
            bias.copy_(bias.float() + of_bias.float().reshape(bias.shape))
    except (RuntimeError, IndexError, AssertionError):  # raised by factors that do not fit
        raise does_not_fit(layer, tuple(weight.shape), where) from None
