"""Adapter files on a loaded model to sample with: any number, each with a strength, replaced without a new model.

As in other programs, every file adds its change to the outputs of the model's own layers, times its strength; the
model's weights are never changed. A file's change is computed from the model's own weight, whatever other files add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from modules.adapters.kept_layers import KeptLayer, kept_layer
from modules.adapters.registry import ADAPTERS, adapter_labels
from modules.adapters.start import AdapterContent
from modules.adapters.stored_header import reason_if_broken, reason_to_refuse
from modules.adapters.tools.opening import WeightedFile
from modules.families.kinds.identify import identify
from modules.families.kinds.registry import serves_as
from modules.families.lora_naming import LoraNaming
from modules.formats.adapter_file import read_adapter_file
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_types import can_act
from modules.system.errors import DarkroomError

_NAME = "stacked_layers"


class _StackedChanges(nn.Module):
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
            stacked = _StackedChanges()
            target.add_module(_NAME, stacked)
            self._stacked[target] = target.register_forward_hook(stacked.add_to)
        assert isinstance(stacked, _StackedChanges)
        stacked.changes.append(change)
        stacked.strengths.append(file.strength)


# Adapter files as the layers of a loaded model.
_TEXT_MODEL = "text_model."


def read_adapter(path: Path, naming: LoraNaming, modules: Mapping[str, nn.Module]) -> AdapterContent:
    """Return the content of a file, its layers by the paths they have in `modules`, the model's parts by name.

    Raises DarkroomError if the file is not an adapter, is damaged, has values that are not finite, or is for another
    model, which lacks most of its layers.
    """
    kind = identify(path)
    if not serves_as(kind, "start of an adapter"):
        labels = ", ".join(spec.label for spec in ADAPTERS.values())
        advice = f"Choose a file of one of these types: {labels}."
        raise kind.refusal(f"{path.name} is not a supported adapter file.", advice)
    content = read_adapter_file(path, naming.targets)
    refusal, advice = reason_to_refuse(path.name, len(content.layers), content.unplaced, kind.sentence)
    if refusal:
        raise DarkroomError(refusal, advice=advice)
    shapes = {(x.part, x.path): {name: tuple(f.shape) for name, f in x.factors.items()} for x in content.layers}
    broken, advice = reason_if_broken(path.name, shapes)
    if broken:
        raise DarkroomError(broken, advice=advice)
    for layer in content.layers:
        if not math.isfinite(layer.alpha or 0.0) or not all(map(_is_finite, layer.factors.values())):
            raise _not_finite(path, f"{layer.part}.{layer.path}")
    for name, tensor in content.extra_tensors.items():
        if not _is_finite(tensor):
            raise _not_finite(path, name)
    layers = tuple(_at_module_path(layer, modules, path) for layer in content.layers)
    return AdapterContent(path.name, layers, content.extra_tensors)


def _is_finite(tensor: torch.Tensor) -> bool:
    wide = tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor
    return bool(wide.isfinite().all())


def _not_finite(path: Path, where: str) -> DarkroomError:
    return DarkroomError(
        f"{path.name} has NaN or infinite values at {where}.",
        advice="Choose another file, such as an earlier save of the same training.",
    )


def _at_module_path(layer: AdapterLayer, modules: Mapping[str, nn.Module], file: Path) -> AdapterLayer:
    """Return a layer under its module's path; transformers 5.6 dropped the "text_model." that files have."""
    module = modules.get(layer.part)
    for path in (layer.path, layer.path.removeprefix(_TEXT_MODEL)):
        if module is not None and _has(module, path):
            return replace(layer, path=path)
    raise DarkroomError(f"{file.name} has a layer that this model lacks: {layer.part}.{layer.path}.")


def _has(module: nn.Module, path: str) -> bool:
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True
