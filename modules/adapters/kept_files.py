"""Writing what a run keeps of the file it started from, together with what it trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from modules.adapters.protocol import AdapterKind
from modules.adapters.spec import FileForm
from modules.adapters.start import Start
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import second_copies
from modules.formats.lora_files import fits_peft, to_kohya
from modules.formats.safetensors_io import Writable


def written(
    kind: AdapterKind, trained: Sequence[AdapterLayer], start: Start | None, form: FileForm, naming: LoraNaming
) -> tuple[dict[str, Writable], dict[str, str]]:
    """Return the tensors of a file with the trained layers and those that `start` keeps, and what the form adds to its
    metadata.

    The kohya form holds everything as it is. diffusers' form holds only LoRA, with alpha and a Tucker core multiplied
    into its matrices; `lost_in` names the rest. `copies_in` are left out of both.
    """
    if start is None or not (start.kept or start.others):
        tensors, metadata = kind.write(trained, form, naming)
        return dict(tensors), metadata
    if form == "kohya":
        tensors, metadata = kind.write(trained, form, naming)
        copies = set(copies_in(start, naming))
        others = {name: tensor for name, tensor in start.others.items() if name not in copies}
        return {**others, **tensors, **to_kohya(start.kept, naming.kohya_name)}, metadata
    kept = [_in_float32(layer) for layer in written_of(start, form)]
    tensors, metadata = kind.write([*trained, *kept], form, naming)
    return dict(tensors), metadata


def written_of(start: Start | None, form: FileForm) -> list[AdapterLayer]:
    """Return the kept layers that a form holds."""
    return [layer for layer in (start.kept if start else ()) if form == "kohya" or fits_peft(layer)]


def copies_in(start: Start, naming: LoraNaming) -> list[str]:
    """Return the names of the other tensors that are second copies of layers which are written under these names."""
    places = {(layer.part, layer.path) for layer in (*start.kept, *start.left_out)}
    places |= {(part, path) for part, paths in start.targets.items() for path in paths}
    places |= {(layer.part, layer.path) for layers in start.trained.values() for layer in layers}
    others = (*start.others, *start.left_out_others)
    return second_copies(others, {naming.kohya_name(*place) for place in places})


def lost_in(start: Start, form: FileForm) -> Iterator[str]:
    """Yield the names of the kept layers and tensors that a form cannot hold."""
    if form != "kohya":
        yield from (f"{layer.part}.{layer.path}" for layer in start.kept if not fits_peft(layer))
        yield from start.others


def _in_float32(layer: AdapterLayer) -> AdapterLayer:
    """Return a layer in float32: diffusers' form has alpha and a Tucker core multiplied into the matrices."""
    return replace(layer, factors={name: factor.to(torch.float32) for name, factor in layer.factors.items()})
