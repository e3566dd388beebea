"""Opening adapter files for the tools: their layers, and which of them a tool can handle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from modules.adapters.changes import does_not_fit
from modules.adapters.stored_header import reason_if_broken, reason_to_refuse
from modules.families.kinds.conversion import Source
from modules.families.kinds.identify import identify
from modules.families.kinds.lora_conversion import open_lora
from modules.families.registry import FAMILIES
from modules.formats.adapter_file import AdapterFile, read_adapter_file
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_targets import AdapterTargets, fits
from modules.formats.adapter_types import DORA_SCALE, can_act, depends_on_weight, type_of
from modules.system.errors import DarkroomError

_MERGE_AND_EXTRACT = (
    "Merge the file into the model that it was trained on, and extract a LoRA from the two models: that gives a LoRA "
    "with the same effect."
)


@dataclass(frozen=True, slots=True)
class WeightedFile:
    """An adapter file and the strength that it is used with; a negative one subtracts it."""

    path: Path
    strength: float = 1.0

    @property
    def name_and_strength(self) -> str:
        """The name and the strength."""
        return f"{self.path.name} ({self.strength:g})"


def open_adapter(path: Path) -> Source:
    """Open an adapter file of any form for a tool. Raises DarkroomError for any other file, or for an unknown model."""
    kind = identify(path)
    if kind.kind != "lora" or not kind.model:
        labels = ", ".join(spec.label for spec in FAMILIES.values())
        raise kind.refusal(f"{path.name} cannot be used.", f"Choose a LoRA file for {labels}.")
    source = open_lora(path, kind)
    _require_whole(path.name, content_of(source))
    return source


def content_of(source: Source) -> AdapterFile:
    """Return the content of an opened adapter file."""
    assert source.adapter is not None  # `open_lora` reads it
    return source.adapter


def read_for_model(path: Path, targets: AdapterTargets) -> AdapterFile:
    """Return the content of an adapter file for a model with these layers.

    Raises DarkroomError for any other file, for a file of another model, and where a layer's change is not known.
    """
    kind = identify(path)
    if kind.kind != "lora":
        raise kind.refusal(f"{path.name} is not an adapter file.", "Choose a LoRA file.")
    content = read_adapter_file(path, targets)
    refusal, advice = reason_to_refuse(path.name, len(content.layers), content.unplaced, kind.sentence)
    if refusal:
        raise DarkroomError(refusal, advice=advice)
    _require_whole(path.name, content)
    weights = {(target.part, target.path): target.weight for target in targets.all}
    for layer in content.layers:
        if not fits(layer.shapes, weights[layer.part, layer.path]):
            raise does_not_fit(layer, weights[layer.part, layer.path], path.name)
        if not can_act(layer.shapes):
            raise DarkroomError(
                f"{path.name} changes {layer.part}.{layer.path} by {_label(layer)}, whose change is not known here.",
                advice="Use the program that made the file to convert it, or choose another file.",
            )
    return content


def require_linear(where: str, layers: Iterable[AdapterLayer], tool: str) -> None:
    """Raise DarkroomError if the change of a layer depends on the model's weight, or is not known."""
    for layer in layers:
        if depends_on_weight(layer.factors) or not can_act(layer.shapes):
            raise DarkroomError(
                f"{where} cannot be {tool}: it changes {layer.part}.{layer.path} by {_label(layer)}, whose change "
                "depends on the weights of the model.",
                advice=_MERGE_AND_EXTRACT,
            )


def widest_dtype(layers: Iterable[AdapterLayer]) -> torch.dtype:
    """Return the widest floating-point dtype of some layers, at most float32; float32 without layers."""
    dtypes = {f.dtype for layer in layers for f in layer.factors.values() if f.is_floating_point()}
    wide = {torch.float16 if dtype.itemsize == 1 else dtype for dtype in dtypes} or {torch.float32}
    widest = wide.pop()
    for dtype in wide:
        widest = torch.promote_types(widest, dtype)
    return torch.float32 if widest.itemsize > torch.float32.itemsize else widest


def left_over_notes(where: str, content: AdapterFile) -> tuple[str, ...]:
    """Return a sentence for everything in a file that a tool leaves out because it writes only layers."""
    others = [name for name in content.extra_tensors if name not in content.embeddings]
    notes = [f"{where}: {content.doubt}"] if content.doubt else []
    if content.embeddings:
        notes.append(f"The embeddings in {where} are left out: keep the file to use them.")
    if others:
        notes.append(f"{len(others)} tensors of {where} belong to no layer of the model and are left out.")
    return tuple(notes)


def _require_whole(where: str, content: AdapterFile) -> None:
    shapes = {(layer.part, layer.path): layer.shapes for layer in content.layers}
    broken, advice = reason_if_broken(where, shapes)
    if broken:
        raise DarkroomError(broken, advice=advice)


def _label(layer: AdapterLayer) -> str:
    label = type_of(layer.factors) or "an unknown type of adapter"
    return f"DoRA ({label})" if DORA_SCALE in layer.factors else label


def names_of(files: Sequence[WeightedFile]) -> str:
    """Return the names and strengths of files, in one line."""
    return ", ".join(file.name_and_strength for file in files)
