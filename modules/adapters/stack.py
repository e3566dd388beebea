"""Adapter files on a loaded model to sample with: any number, each with a strength, replaced without a new model.

As in other programs, every file adds its change to the outputs of the model's own layers, times its strength; the
model's weights are never changed. A file's change is computed from the model's own weight, whatever other files add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from modules.adapters.kept_layers import KeptLayer, kept_layer
from modules.adapters.registry import adapter_labels
from modules.adapters.stored import read_adapter
from modules.adapters.tools.opening import WeightedFile
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_types import can_act
from modules.system.errors import DarkroomError

_NAME = "stacked_layers"


class _Stacked(nn.Module):
    """The changes of one layer of a model, by several files."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = nn.ModuleList()
        self.strengths: list[float] = []

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return the output of a layer with all changes added: its forward hook."""
        x = inputs[0].to(torch.float32)
        for change, strength in zip(self.changes, self.strengths, strict=True):
            output = output + (strength * cast(KeptLayer, change)(layer, x)).to(output.dtype)
        return output


class AdapterStack:
    """The adapter files on a model; `put` replaces all of them."""

    def __init__(self, modules: Mapping[str, nn.Module], naming: LoraNaming) -> None:
        """`modules` are the model's parts by name."""
        self._modules = modules
        self._naming = naming
        self._stacked: dict[nn.Module, RemovableHandle] = {}
        self.files: tuple[WeightedFile, ...] = ()

    def put(self, files: Sequence[WeightedFile]) -> None:
        """Replace the files on the model with these.

        Raises DarkroomError for a file that is not an adapter of this model; the model is then left without files.
        """
        if tuple(files) == self.files:
            return
        self.clear()
        try:
            for file in files:
                self._add(file)
        except BaseException:
            self.clear()
            raise
        self.files = tuple(files)

    def clear(self) -> None:
        """Take all files off the model."""
        for layer, handle in self._stacked.items():
            handle.remove()
            del layer._modules[_NAME]
        self._stacked.clear()
        self.files = ()

    def _add(self, file: WeightedFile) -> None:
        if not math.isfinite(file.strength):
            raise DarkroomError(f"The strength of {file.path.name} is not a finite number.", advice="Use a number.")
        content = read_adapter(file.path, self._naming, self._modules)
        for layer in content.layers:
            if not can_act(layer.shapes):
                raise DarkroomError(
                    f"{file.path.name} changes {layer.part}.{layer.path} in a way that is not supported.",
                    advice=f"Choose a file of one of these types: {adapter_labels()}.",
                )
            if file.strength:
                self._add_layer(layer, file)

    def _add_layer(self, layer: AdapterLayer, file: WeightedFile) -> None:
        target = self._modules[layer.part].get_submodule(layer.path)
        change = kept_layer(layer, target, where=file.path.name)
        stacked = target._modules.get(_NAME)
        if stacked is None:
            stacked = _Stacked()
            target.add_module(_NAME, stacked)
            self._stacked[target] = target.register_forward_hook(stacked.add_to)
        assert isinstance(stacked, _Stacked)
        stacked.changes.append(change)
        stacked.strengths.append(file.strength)
