"""A file whose denoiser replaces the model's own: its tensors under our names; and the packed layers of a part's file.

The denoiser is in the original layout, with or without a prefix, or in diffusers' layout; other parts in the file are
not used. The record of a family's files (`DenoiserFile`) describes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.families.parts.single_file.encoder_file import encoder_tensors
from modules.families.parts.single_file.models import left_over_names, missing_names
from modules.families.parts.single_file.record import DenoiserFile, PartLayout
from modules.families.parts.single_file.slots import Slot
from modules.families.registry import FAMILIES, files_of
from modules.families.spec import DENOISERS, PartSpec
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.gguf_header import GgufTensor
from modules.system.errors import DarkroomError
from modules.system.problem import with_article


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a file contains a tensor of ours: the name there, and how to get ours from it."""

    name: str
    slot: Slot


def has_denoiser(family: str, names: Iterable[str]) -> bool:
    """Return whether a file with tensors of these names contains a denoiser of the family in either layout."""
    record = files_of(family).denoiser_file
    return record is not None and record.is_in(names)


def parts_inside(family: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the parts besides the denoiser that a file of a family's denoiser contains."""
    record, names = files_of(family).denoiser_file, list(names)
    inside = record.inside if record is not None and record.is_in(names) else {}
    return tuple(part for part, inner in inside.items() if inner.is_in(names))


def is_in_denoiser_files(family: str, part: PartSpec) -> bool:
    """Return whether files of a family's denoiser contain a part: the denoiser itself, one like it, or one inside."""
    record = files_of(family).denoiser_file
    return part.role in DENOISERS or (record is not None and part.name in record.inside)


def tensors_of(
    family: str, part: PartSpec, names: Iterable[str], config: Mapping[str, Any], *, where: str
) -> dict[str, StoredTensor]:
    """Return where a file contains each tensor of a part that is in files of the denoiser (`is_in_denoiser_files`).

    As `denoiser_tensors`; a file with such a part alone may lack the beginning of its names.
    """
    record, names = files_of(family).denoiser_file, list(names)
    if part.role in DENOISERS or record is None:
        return denoiser_tensors(family, names, config, where=where)
    inner = record.inside[part.name]
    layout = inner.layout(config)
    inside = {n.partition(inner.start)[2]: n for n in names} if inner.is_in(names) else {n: n for n in names}
    there = {f"{layout.prefix}{bare}": name for bare, name in inside.items() if bare}
    if problem := _unfit(layout, there):
        raise DarkroomError(
            f"The {part.label} in {where} does not fit the base model's: {problem}.",
            advice=f"Choose a file of {with_article(part.label)} of the base model.",
        )
    return {s.key: StoredTensor(there[f"{layout.prefix}{s.original}"], s) for s in layout.slots}


def denoiser_tensors(
    family: str, names: Iterable[str], config: Mapping[str, Any], *, where: str
) -> dict[str, StoredTensor]:
    """Return where a file contains each tensor of a denoiser with this config, by our name.

    `where` names the file in messages. Raises DarkroomError if it has not exactly the tensors of that denoiser.
    """
    label, record = FAMILIES[family].denoiser.label, files_of(family).denoiser_file
    if record is None:
        raise DarkroomError(f"A {label} of {FAMILIES[family].label} cannot be read from a file of its own.")
    layout = record.layout(config)
    in_diffusers = _in_diffusers(record, names)
    if any(name.startswith(record.diffusers_marks) for name in in_diffusers):
        missing = sorted({s.key for s in layout.slots} - in_diffusers.keys())
        extra: list[str] = []
        tensors = {s.key: StoredTensor(in_diffusers.get(s.key, ""), Slot(s.key, s.key)) for s in layout.slots}
    else:
        original = record.original_names(in_diffusers.values())
        missing, extra = missing_names(layout, original), left_over_names(layout, original)
        tensors = {s.key: StoredTensor(original.get(f"{layout.prefix}{s.original}", ""), s) for s in layout.slots}
    if problem := _difference(missing, extra):
        raise DarkroomError(
            f"The {label} in {where} does not fit the base model's: {problem}.",
            advice=f"Choose {with_article(label)} of the base model's family and variant.",
        )
    return tensors


def config_in_file(family: str, names: Iterable[str], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the denoiser in a file with tensors of these names, from the `config` of another model's.

    Both are the same unless the file is of a distilled model, which may lack some weights or have further ones
    (`DistilledSpec.lacks`, `adds`).
    """
    distilled, record = FAMILIES[family].distilled, files_of(family).denoiser_file
    if distilled is None or record is None or not distilled.config_key or not (distilled.lacks or distilled.adds):
        return config
    of_distilled = {**config, distilled.config_key: distilled.config_value}
    layout, in_diffusers = record.layout(of_distilled if distilled.adds else config), _in_diffusers(record, names)
    there = {*in_diffusers, *(n.removeprefix(layout.prefix) for n in record.original_names(in_diffusers.values()))}
    shown_by = [slot for slot in layout.slots if slot.key.startswith(distilled.adds or distilled.lacks)]
    is_there = any(not there.isdisjoint((slot.key, slot.original)) for slot in shown_by)
    return of_distilled if is_there == bool(distilled.adds) else config


def packed_layers(family: str, part: PartSpec, path: Path, config: Mapping[str, Any]) -> dict[str, GgufTensor]:
    """Return the linear layers of a part in a file whose weights are packed in blocks, by name; none without any.

    `config` is the config of a part in files of the denoiser. Raises DarkroomError if the file has no such part, and
    UnreadableFileError for a file that cannot be read.
    """
    header = read_checkpoint_header(path)
    if header.container != "gguf":
        return {}
    if is_in_denoiser_files(family, part):
        tensors = tensors_of(family, part, header.shapes, config, where=path.name)
    else:
        names = {f"{part.model.language_prefix}{n}": name for n, name in encoder_tensors(header.shapes).items()}
        tensors = {ours: StoredTensor(name, Slot(ours, ours)) for ours, name in names.items()}
    layers = {}
    for ours, stored in tensors.items():
        entry = header.entries[stored.name]
        is_linear = ours.endswith(".weight") and len(header.shapes[stored.name]) == 2
        if is_linear and isinstance(entry, GgufTensor) and entry.type.is_packed:
            layer = _rows_of(entry, stored.slot)
            if layer is not None:
                layers[ours.removesuffix(".weight")] = layer
    return layers


def _unfit(layout: PartLayout, names: Iterable[str]) -> str:
    """Return how original names differ from a layout's; empty where they do not."""
    return _difference(missing_names(layout, names), left_over_names(layout, names))


def _difference(missing: list[str], extra: list[str]) -> str:
    what = f"lacks {len(missing)} of its weights" if missing else f"has {len(extra)} other weights"
    return f"it {what}; the first is {(missing or extra)[0]}" if missing or extra else ""


def _rows_of(entry: GgufTensor, slot: Slot) -> GgufTensor | None:
    """Return the rows that a slot has in a packed tensor; None where they are not a range of whole blocks."""
    if slot.swapped:
        return None
    if len(slot.shares) == 1:
        return entry
    rows, columns = entry.shape
    if columns % entry.type.block:
        return None
    start, stop = slot.rows(rows)
    row_bytes = (entry.end - entry.start) // rows
    first = entry.start + start * row_bytes
    return replace(entry, shape=slot.shape_of(entry.shape), start=first, end=first + (stop - start) * row_bytes)


def _in_diffusers(record: DenoiserFile, names: Iterable[str]) -> dict[str, str]:
    """Return a file's names as they are in diffusers' layout, without a prefix: `{name there: name in the file}`."""
    return {_without(record.diffusers_prefixes, name): name for name in names}


def _without(prefixes: tuple[str, ...], name: str) -> str:
    return next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name)
