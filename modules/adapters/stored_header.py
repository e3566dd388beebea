"""An adapter file from its header alone: the layers that it changes, with the shapes of their factors.

A run keeps a copy of the file it started from, with its own tensor names and an index in the metadata (`ContentIndex`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from modules.adapters.spec import Shape
from modules.formats.adapter_damage import damage_in, mismatch_in
from modules.formats.adapter_names import second_copies, tensors_by_layer
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.adapter_types import missing_factor, no_factors
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.fused_layers import divided_shapes, ranks_in, why_undivided
from modules.system.problem import count

_TEXT_MODEL = "text_model."
Place = tuple[str, str]
T = TypeVar("T")

_INDEX = "darkroom_adapter_layers"
_LAYER, _OTHER = "layer", "other"


@dataclass(frozen=True, slots=True)
class ContentIndex:
    """The content of the copy: layers by part and path, each with its alpha, and the other tensors by their names.

    `where` is the name of the original file.
    """

    where: str
    layers: tuple[tuple[str, str, float | None], ...]
    others: tuple[str, ...]

    def to_metadata(self) -> dict[str, str]:
        """Return the metadata of a copy with this index."""
        return {_INDEX: json.dumps({"where": self.where, "layers": self.layers, "others": self.others})}


def index_in(metadata: Mapping[str, str]) -> ContentIndex:
    """Return the index in the metadata of a copy. Raises ValueError, KeyError or TypeError without a valid index."""
    index = json.loads(metadata[_INDEX])
    layers = tuple((part, path, alpha) for part, path, alpha in index["layers"])
    return ContentIndex(index["where"], layers, tuple(index["others"]))


def layer_tensor(number: int, factor: str) -> str:
    """Return the name of a factor of the layer with this number in the index."""
    return f"{_LAYER}.{number}.{factor}"


def other_tensor(number: int) -> str:
    """Return the name of the other tensor with this number in the index."""
    return f"{_OTHER}.{number}"


def factors_by_layer(tensors: Mapping[str, T]) -> dict[int, dict[str, T]]:
    """Return the factors of each layer by its number, from tensors (or their shapes) by name.

    Raises ValueError for a name that `layer_tensor` does not give.
    """
    by_number: dict[int, dict[str, T]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        if group == _LAYER:
            number, _, factor = rest.partition(".")
            by_number.setdefault(int(number), {})[factor] = tensor
    return by_number


@dataclass(frozen=True, slots=True)
class StoredHeader:
    """The layers of a file by part and path, each with the shapes of its factors, and the names of the other tensors.

    Paths are as in the memory estimate: text layers without "text_model.". `unplaced` are the layers that the model
    lacks, by their names in the file; their tensors are among the others. `copies` are tensors of layers that the
    file names twice (`second_copies`); these are not among the others. `undivided` are the reasons why changes cannot
    be divided among the model's layers, by the path of the matrix (`fused_layers`).
    """

    layers: Mapping[Place, Mapping[str, Shape]]
    others: tuple[str, ...]
    unplaced: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    undivided: Mapping[str, str] = field(default_factory=dict)


def match_header(header: CheckpointHeader, targets: AdapterTargets) -> StoredHeader:
    """Return the layers of a file with this header in a model with these targets (`AdapterFile` has the tensors)."""
    layers: dict[Place, Mapping[str, Shape]] = {}
    placed: set[str] = set()
    written: set[str] = set()
    unplaced: list[str] = []
    undivided: dict[str, str] = {}
    ranks = ranks_in(header.metadata)
    for layer, names in tensors_by_layer(sorted(header.shapes)).items():
        shapes = {factor: header.shapes[name] for factor, name in names.items()}
        target = targets.find(layer, shapes)
        places = [] if target is None else [(t.part, t.path) for t in target.pieces or (target,)]
        places = [(part, path.removeprefix(_TEXT_MODEL)) for part, path in places]
        if target is None or any(place in layers for place in places):
            unplaced.append(layer)
            continue
        written.add(target.kohya_name)
        placed |= set(names.values())
        factors = {factor: shape for factor, shape in shapes.items() if factor not in no_factors()}
        if target.pieces and (why := why_undivided(target, factors)):
            undivided[target.path] = why
            continue
        pieces = divided_shapes(target, factors, ranks.get(target.path, ())) if target.pieces else [factors]
        layers |= {place: piece for place, piece in zip(places, pieces, strict=True) if piece}
    rest = [name for name in sorted(header.shapes) if name not in placed]
    copies = second_copies(rest, written)
    others = sorted(set(rest) - set(copies))
    return StoredHeader(layers, tuple(others), tuple(unplaced), tuple(copies), undivided)


def header_of_copy(header: CheckpointHeader, targets: AdapterTargets) -> tuple[str, StoredHeader]:
    """Return the name of the file that a run started from, and its content, from the run's copy (`read_content`).

    Raises ValueError, KeyError or TypeError if it is not such a copy.
    """
    index, factors = index_in(header.metadata), factors_by_layer(header.shapes)
    places = ((part, path.removeprefix(_TEXT_MODEL)) for part, path, _ in index.layers)
    layers = {place: factors[number] for number, place in enumerate(places)}
    written = {t.kohya_name for t in targets.all if (t.part, t.path.removeprefix(_TEXT_MODEL)) in layers}
    copies = second_copies(index.others, written)
    others = tuple(name for name in index.others if name not in copies)
    return index.where, StoredHeader(layers, others, copies=tuple(copies))


def reason_to_refuse(where: str, num_placed: int, unplaced: Sequence[str], sentence: str) -> tuple[str, str]:
    """Return a message and its advice if most layers of a file are not in the model; otherwise two empty strings.

    Preflight reads a file's header, the run its tensors. `unplaced` are the names of the missing layers, `sentence`
    describes the file's kind and names its model.
    """
    if len(unplaced) <= num_placed:
        return "", ""
    message = f"{where} has {count(len(unplaced), 'layer')} that this model does not have; the first is {unplaced[0]}."
    return f"{message} {sentence}", "Choose a LoRA made for a model of this size."


def reason_if_broken(where: str, layers: Mapping[Place, Mapping[str, Shape]]) -> tuple[str, str]:
    """Return a message and its advice if a layer of the file named `where` lacks a factor or has a damaged one.

    `layers` are the shapes of the factors of each layer. Two empty strings if all are plausible.
    """
    for (part, path), shapes in layers.items():
        if damage := damage_in(shapes) or mismatch_in(shapes):
            return f"{where} is damaged at {part}.{path}: {damage}.", "Download it again."
        if missing := missing_factor(shapes):
            return f"{where} is incomplete: {part}.{path} has no {missing}.", "Download it again."
    return "", ""


def reason_if_outside(where: str, unplaced: Sequence[str], places: Collection[Place], denoiser: str) -> tuple[str, str]:
    """Return a message and its advice if a training adapter has layers outside the denoiser.

    `unplaced` are the layers that the model lacks, by their names in the file, `places` those that it has; `denoiser`
    is the name of the part. Two empty strings if there are no others.
    """
    if unplaced:
        message = (
            f"{where} has {count(len(unplaced), 'layer')} that this model does not have; the first is {unplaced[0]}."
        )
        return message, "Choose the training adapter of this model."
    others = [f"{part}.{path}" for part, path in places if part != denoiser]
    if others:
        message = f"{where} also changes {others[0]}, which is not a layer of the denoiser."
        return message, "Choose a training adapter that changes the denoiser alone."
    return "", ""
