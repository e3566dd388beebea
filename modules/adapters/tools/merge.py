"""Merging adapter files into a model: its weights plus the change by each file, times that file's strength.

Each change is computed from the model's own weight, so the order of the files does not matter. The weights are read,
changed in float32 and written one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from modules.adapters.changes import bias_change, does_not_fit, weight_change
from modules.adapters.start import changes_weight
from modules.adapters.tools.opening import WeightedFile, left_over_notes, names_of, read_for_model
from modules.adapters.tools.results import tool_metadata
from modules.families.kinds.conversion import Source
from modules.families.registry import published_model
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.lazy_tensors import LazyTensor
from modules.system.errors import DarkroomError
from modules.system.problem import count

Place = tuple[str, str]
_Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class MergedModel:
    """A model with adapters in its weights, to be written like any opened model, and sentences about the merge."""

    source: Source
    sentences: tuple[str, ...]


def merge_into_model(model: Source, files: Sequence[WeightedFile], *, dtype: torch.dtype | None) -> MergedModel:
    """Return an opened model with the changes of adapter files in its weights, to be written in `dtype`.

    Raises DarkroomError for a file of another model, and for a change that is not known or does not fit.
    """
    if not model.kind.is_model:
        raise model.kind.refusal(
            f"{model.path.name} is not a whole model.", "Choose a model file or a diffusers folder."
        )
    targets = published_model(model.kind.model).adapter_targets(model.configs)
    changes: dict[Place, list[_Change]] = {}
    sentences: list[str] = []
    for file in files:
        content = read_for_model(file.path, targets)
        for layer in content.layers:
            _add(changes, model, layer, file)
        sentences.append(f"{file.name_and_strength}: {count(len(content.layers), 'layer')} merged.")
        sentences += left_over_notes(file.path.name, content)
    states = {
        part: {name: _with_changes(tensor, changes.get((part, name), ()), dtype) for name, tensor in state.items()}
        for part, state in model.states.items()
    }
    inputs = [{"file": file.path.name, "strength": file.strength} for file in files]
    metadata = {
        **(model.metadata or {}),
        "modelspec.merged_from": f"{model.path.name}, {names_of(files)}",
        **tool_metadata("merge LoRAs into a model", inputs, model=model.path.name),
    }
    return MergedModel(replace(model, states=states, metadata=metadata), tuple(sentences))


def _add(changes: dict[Place, list[_Change]], model: Source, layer: AdapterLayer, file: WeightedFile) -> None:
    """Add the changes by a layer of a file: of a weight, a bias, or both."""
    names = {f"{layer.path}.{kind}": kind for kind in ("weight", "bias")}
    state = model.states.get(layer.part, {})
    bias = bias_change(layer.factors)
    for name, kind in names.items():
        is_changed = bias is not None if kind == "bias" else changes_weight(layer)
        if not is_changed:
            continue
        if name not in state:
            raise DarkroomError(
                f"{file.path.name} changes the {kind} of {layer.part}.{layer.path}, which this model does not have.",
                advice="Choose a file that was trained on this model, or on one of the same size.",
            )
        change = _bias_adder(layer, file) if kind == "bias" else _weight_adder(layer, file)
        changes.setdefault((layer.part, name), []).append(change)


def _weight_adder(layer: AdapterLayer, file: WeightedFile) -> _Change:
    def change(weight: torch.Tensor) -> torch.Tensor:
        try:
            delta = weight_change(layer.factors, layer.alpha, weight)
            assert delta is not None  # `changes_weight`
            return delta.reshape(weight.shape) * file.strength
        except (RuntimeError, IndexError):  # raised by factors that do not fit
            raise does_not_fit(layer, tuple(weight.shape), file.path.name) from None

    return change


def _bias_adder(layer: AdapterLayer, file: WeightedFile) -> _Change:
    def change(bias: torch.Tensor) -> torch.Tensor:
        delta = bias_change(layer.factors)
        if delta is None or delta.numel() != bias.numel():
            raise does_not_fit(layer, tuple(bias.shape), file.path.name)
        return delta.float().reshape(bias.shape) * file.strength

    return change


def _with_changes(tensor: LazyTensor, changes: Sequence[_Change], dtype: torch.dtype | None) -> LazyTensor:
    """Return a tensor with the changes added in float32, in `dtype` or its own."""
    if not changes:
        return tensor
    written = dtype or tensor.dtype

    def make() -> torch.Tensor:
        original = tensor.make().float()
        total = original.clone()
        for change in changes:
            total += change(original)
        return total.to(written)

    return LazyTensor(tensor.shape, written, make)
