"""Writing what a run keeps of the file it started from, together with what it trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from modules.adapters.changes import folded
from modules.adapters.protocol import AdapterKind
from modules.adapters.spec import FileForm
from modules.adapters.start import Start
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN, MID, UP
from modules.formats.lycoris_files import to_kohya
from modules.formats.safetensors_io import Writable


def written(
    kind: AdapterKind, trained: Sequence[AdapterLayer], start: Start | None, form: FileForm, naming: LoraNaming
) -> tuple[dict[str, Writable], dict[str, str]]:
    """Return the tensors of a file with the trained layers and those that `start` keeps, and what the form adds to its
    metadata.

    The kohya form holds everything as it is. diffusers' form holds only LoRA, a Tucker LoRA as the plain LoRA with the
    same product; `lost_in` names the rest.
    """
    if start is None or not (start.kept or start.others):
        tensors, metadata = kind.write(trained, form, naming)
        return dict(tensors), metadata
    if form == "kohya":
        tensors, metadata = kind.write(trained, form, naming)
        return {**tensors, **to_kohya(start.kept, naming.kohya_name), **start.others}, metadata
    kept = [folded(layer) for layer in start.kept if _is_lora(layer)]
    tensors, metadata = kind.write([*trained, *kept], form, naming)
    return dict(tensors), metadata


def lost_in(start: Start, form: FileForm) -> Iterator[str]:
    """Yield the names of the kept layers and tensors that a form cannot hold."""
    if form != "kohya":
        yield from (f"{layer.part}.{layer.path}" for layer in start.kept if not _is_lora(layer))
        yield from start.others


def _is_lora(layer: AdapterLayer) -> bool:
    return {DOWN, UP} <= layer.factors.keys() <= {DOWN, UP, MID}
