"""The adapter file that a run starts from: the layers that it continues to train, and the layers that it keeps.

The run's folder has its own copy of the content (`write_content`), so that a resumed run starts from the same layers
even if the adapter file has been changed or deleted since. Kept layers are saved together with the trained ones
(`tensors_to_write`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from modules.adapters.protocol import AdapterKind
from modules.adapters.spec import Trainable
from modules.adapters.stored_header import ContentIndex, factors_by_layer, index_in, layer_tensor, other_tensor
from modules.families.lora_naming import LoraNaming
from modules.formats.adapter_forms import FileForm
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import MID, second_copies
from modules.formats.adapter_types import BIASES, can_act
from modules.formats.fused_changes import join
from modules.formats.lora_files import fits_peft, with_letters
from modules.formats.safetensors_io import Writable, read_safetensors, write_safetensors
from modules.system.errors import DarkroomError


@dataclass(frozen=True, eq=False)
class AdapterContent:
    """The content of an adapter file: layers, by their names in a loaded model, and other tensors, by their own names.

    The others are bundled embeddings and tensors of layers that the model does not have. `where` is the file's name.
    """

    where: str
    layers: tuple[AdapterLayer, ...]
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Start:
    """The content of an adapter file, divided for a run.

    `trained` are the layers that the run continues to train, by part. `kept` are the layers that it does not train,
    which stay as they are, and `others` tensors of no layer. If the run leaves these out, they are in `left_out`
    and `left_out_others` (names only) instead. `targets` are the layers of each part that get an adapter.
    """

    where: str
    trained: Mapping[str, Sequence[AdapterLayer]]
    kept: tuple[AdapterLayer, ...]
    others: Mapping[str, torch.Tensor]
    left_out: tuple[AdapterLayer, ...]
    targets: Mapping[str, Sequence[str]]
    left_out_others: tuple[str, ...] = ()

    def kept_in(self, part: str) -> list[AdapterLayer]:
        """Return the layers that are kept in a part."""
        return [layer for layer in self.kept if layer.part == part]

    @property
    def inactive(self) -> list[AdapterLayer]:
        """The kept layers whose change is not known here: they are written again, and do nothing in the run."""
        return [layer for layer in self.kept if not can_act(layer.shapes)]

    @property
    def num_folded(self) -> int:
        """The number of trained layers whose Tucker core becomes part of their down matrix."""
        return sum(MID in layer.factors for layers in self.trained.values() for layer in layers)


def divide_content(
    content: AdapterContent, targets: Mapping[str, Sequence[str]], trainable: Trainable, *, keeps: bool
) -> Start:
    """Divide the content of a file for a run that trains adapters on `targets`, the layers of each part.

    `trainable` is from the adapter's record. A layer that is kept with a change of another kind is not trained: a file
    holds one change of a weight. With `keeps` the other layers and tensors are kept, otherwise they are left out.
    """
    trained: dict[str, list[AdapterLayer]] = {part: [] for part in targets}
    others: list[AdapterLayer] = []
    for layer in content.layers:
        names = trainable(layer.shapes) if layer.path in targets.get(layer.part, ()) else frozenset()
        if names:
            trained_factors = {name: factor for name, factor in layer.factors.items() if name in names}
            trained[layer.part].append(replace(layer, factors=trained_factors))
        if rest := {name: factor for name, factor in layer.factors.items() if name not in names}:
            others.append(replace(layer, factors=rest, alpha=None if names else layer.alpha))
    kept = tuple(others) if keeps else ()
    taken = {(layer.part, layer.path) for layer in kept if changes_weight(layer)}
    taken -= {(layer.part, layer.path) for layers in trained.values() for layer in layers}
    return Start(
        content.where,
        trained,
        kept,
        dict(content.others) if keeps else {},
        () if keeps else tuple(others),
        {part: [path for path in paths if (part, path) not in taken] for part, paths in targets.items()},
        () if keeps else tuple(content.others),
    )


def changes_weight(layer: AdapterLayer) -> bool:
    """Return whether a layer of a file changes a weight, not only a bias."""
    return bool(layer.factors.keys() - BIASES)


def write_content(path: Path, content: AdapterContent) -> None:
    """Write the content of an adapter file, bit for bit and independent of the names in it, atomically."""
    tensors: dict[str, torch.Tensor] = {}
    for number, layer in enumerate(content.layers):
        tensors |= {layer_tensor(number, name): factor for name, factor in layer.factors.items()}
    tensors |= {other_tensor(number): tensor for number, tensor in enumerate(content.others.values())}
    layers = tuple((layer.part, layer.path, layer.alpha) for layer in content.layers)
    write_safetensors(path, tensors, ContentIndex(content.where, layers, tuple(content.others)).to_metadata())


def read_content(path: Path) -> AdapterContent:
    """Read a file of `write_content`. Raises DarkroomError if it cannot be read."""
    tensors, metadata = read_safetensors(path)
    try:
        index, factors = index_in(metadata), factors_by_layer(tensors)
        layers = tuple(AdapterLayer(part, at, factors[n], alpha) for n, (part, at, alpha) in enumerate(index.layers))
        others = {name: tensors[other_tensor(number)] for number, name in enumerate(index.others)}
        return AdapterContent(index.where, layers, others)
    except (ValueError, KeyError, TypeError) as error:
        raise DarkroomError(
            f"{path} is damaged: it should hold what the run started from.", advice="Start a new run."
        ) from error


def tensors_to_write(
    kind: AdapterKind, trained: Sequence[AdapterLayer], start: Start | None, form: FileForm, naming: LoraNaming
) -> tuple[dict[str, Writable], dict[str, str]]:
    """Return the tensors of a file with the trained and the kept layers, and the metadata that the form adds.

    The kohya form holds everything unchanged, and so does ComfyUI's, which has other names. diffusers' form holds only
    LoRA, with alpha and a Tucker core multiplied into its matrices; `lost_in` names the rest. All leave out the copies
    (`copies_in`).
    """
    copies = set() if start is None else set(copies_in(start, naming))
    if form != "diffusers":
        layers, ranks = join([*trained, *layers_to_write(start, form)], naming.targets.matrices)
        names = naming if form == "kohya" else replace(naming, kohya_name=naming.comfy_name)
        tensors, metadata = kind.write(layers, "kohya", names)
        tensors = tensors if form == "kohya" else with_letters(tensors)
        others = {} if start is None else {n: tensor for n, tensor in start.others.items() if n not in copies}
        return {**others, **tensors}, metadata | ranks
    if start is None or not (start.kept or start.others):
        tensors, metadata = kind.write(trained, form, naming)
        return dict(tensors), metadata
    kept = [_in_float32(layer) for layer in layers_to_write(start, form)]
    tensors, metadata = kind.write([*trained, *kept], form, naming)
    return dict(tensors), metadata


def layers_to_write(start: Start | None, form: FileForm) -> list[AdapterLayer]:
    """Return the kept layers that a form holds."""
    return [layer for layer in (start.kept if start else ()) if form != "diffusers" or fits_peft(layer)]


def copies_in(start: Start, naming: LoraNaming) -> list[str]:
    """Return the names of the other tensors that are second copies of layers which the file is going to hold."""
    places = {(layer.part, layer.path) for layer in (*start.kept, *start.left_out)}
    places |= {(part, path) for part, paths in start.targets.items() for path in paths}
    places |= {(layer.part, layer.path) for layers in start.trained.values() for layer in layers}
    others = (*start.others, *start.left_out_others)
    return second_copies(others, {naming.kohya_name(*place) for place in places})


def lost_in(start: Start, form: FileForm) -> Iterator[str]:
    """Yield the names of the kept layers and tensors that a form cannot hold."""
    if form == "diffusers":
        yield from (f"{layer.part}.{layer.path}" for layer in start.kept if not fits_peft(layer))
        yield from start.others


def _in_float32(layer: AdapterLayer) -> AdapterLayer:
    """Return a layer in float32: diffusers' form has alpha and a Tucker core multiplied into the matrices."""
    return replace(layer, factors={name: factor.to(torch.float32) for name, factor in layer.factors.items()})
