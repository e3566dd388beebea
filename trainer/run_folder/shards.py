"""The tensors of a backup that the processes of a run shard: one safetensors file for each process, with its rows.

They can be read by any number of processes, and whole by a single one. Whatever is not sharded is in safetensors files
next to them. Older versions wrote them in the format of `torch.distributed.checkpoint`, which can still be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from modules.formats.distributed_checkpoint import METADATA, Part, read_distributed
from modules.formats.safetensors_io import read_safetensors, write_safetensors
from modules.formats.stored_tensors import read_lazy_safetensors
from modules.system.errors import DarkroomError
from modules.system.regular_files import json_object_in

Kind = Literal["weights", "optimizer", "ema"]

_FOLDER = "shards"
_ROWS = "rows"  # in the metadata of a file: the first row of each sharded tensor, and the number of rows of the whole


@dataclass(frozen=True, slots=True)
class Rows:
    """A process's rows of a tensor, from the row `start` on; the whole has `num_rows`."""

    values: torch.Tensor
    start: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a backup: the shape of the whole, its dtype, and its parts, in order of their rows."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[Part, ...]

    def whole(self) -> torch.Tensor:
        """Return all of it, on the CPU."""
        return self.rows(0, self.shape[0]) if self.shape else self.parts[0].values.make()

    def rows(self, start: int, end: int) -> torch.Tensor:
        """Return the rows from `start` up to, not including, `end`, on the CPU."""
        rows = torch.empty((end - start, *self.shape[1:]), dtype=self.dtype)
        for part in self.parts:
            first, last = max(start, part.start), min(end, part.start + part.values.shape[0])
            if first < last:
                rows[first - start : last - start] = part.values.make()[first - part.start : last - part.start]
        return rows


def key_of(kind: Kind, name: str) -> str:
    """Return the key of a tensor, unique among the tensors of all kinds."""
    return f"{kind}/{name}"


def write_shards(folder: Path, rows: Mapping[str, Rows], whole: Mapping[str, torch.Tensor], *, process: int) -> None:
    """Write a process's rows, by `key_of`, to a backup's folder; `whole` are tensors that only this process writes.

    Each process writes one file. Raises OSError, and DarkroomError where a value is not finite.
    """
    filled = {key: some for key, some in rows.items() if some.values.shape[0]}
    places = {key: [some.start, some.num_rows] for key, some in filled.items()}
    (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
    tensors = {**{key: some.values for key, some in filled.items()}, **whole}
    file = folder / _FOLDER / f"process-{process:05d}.safetensors"
    write_safetensors(file, tensors, {_ROWS: json.dumps(places, separators=(",", ":"))})


def stored_in_shards(folder: Path, kind: Kind) -> dict[str, StoredTensor]:
    """Return the tensors of one kind that a backup stores in shards, by name.

    Raises DarkroomError where a file is damaged or missing.
    """
    shards = folder / _FOLDER
    if not shards.is_dir():
        return {}
    parts = read_distributed(shards) if (shards / METADATA).exists() else _parts_in(shards)
    prefix = key_of(kind, "")
    return {
        key.removeprefix(prefix): _assemble(shards, key, rows) for key, rows in parts.items() if key.startswith(prefix)
    }


def read_whole(folder: Path, kind: Kind) -> dict[str, torch.Tensor]:
    """Return all whole tensors of one kind in a backup, sharded or not, on the CPU."""
    file = folder / f"{kind}.safetensors"
    tensors = dict(read_safetensors(file)[0]) if file.exists() else {}
    return tensors | {name: stored.whole() for name, stored in stored_in_shards(folder, kind).items()}


def has_averages(folder: Path) -> bool:
    """Return whether a backup contains EMA weights."""
    return (folder / "ema.safetensors").is_file()


def _parts_in(shards: Path) -> dict[str, list[Part]]:
    parts: dict[str, list[Part]] = {}
    for file in sorted(shards.glob("*.safetensors")):
        tensors, metadata = read_lazy_safetensors(file)
        places = _places(file, metadata.get(_ROWS, "{}"))
        for key, tensor in tensors.items():
            start, num_rows = places.get(key, (0, tensor.shape[0] if tensor.shape else 1))
            parts.setdefault(key, []).append(Part(start, num_rows, tensor))
    return parts


def _places(file: Path, text: str) -> dict[str, tuple[int, int]]:
    """Return the first row and the number of rows of each sharded tensor in a file."""
    places = json_object_in(text)
    if places is not None and all(_is_place(place) for place in places.values()):
        return {key: (start, num_rows) for key, (start, num_rows) in places.items()}
    raise DarkroomError(f"{file} cannot be read: its list of rows is damaged.", advice=_ADVICE)


def _is_place(place: object) -> bool:
    return isinstance(place, list) and len(place) == 2 and all(type(n) is int and n >= 0 for n in place)


def _assemble(shards: Path, key: str, parts: list[Part]) -> StoredTensor:
    """Return a tensor of its parts. Raises DarkroomError unless each of its rows is in just one of them."""
    ordered = sorted(parts, key=lambda part: part.start)
    first, end = ordered[0], 0
    for part in ordered:
        is_like = (part.num_rows, part.values.dtype) == (first.num_rows, first.values.dtype)
        if part.start != end or not is_like or part.values.shape[1:] != first.values.shape[1:]:
            break
        end += part.values.shape[0] if part.values.shape else 1
    else:
        if end == first.num_rows and (first.values.shape or len(ordered) == 1):
            return StoredTensor(
                (end, *first.values.shape[1:]) if first.values.shape else (), first.values.dtype, tuple(ordered)
            )
    raise DarkroomError(f"{key.partition('/')[2]} in {shards} is not complete.", advice=_ADVICE)


_ADVICE = "Resume from an older backup of the run."
