"""The tensors of a backup that the processes of a run shard, in the format of `torch.distributed.checkpoint`.

Each process writes its own rows. They can be read by any number of processes, and whole by a single one. Whatever is
not sharded is in safetensors files beside them. Torch's format takes long to import, so only runs that use it do.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from modules.formats.safetensors_io import read_safetensors

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

Kind = Literal["weights", "optimizer", "ema"]

_FOLDER = "shards"


def key_of(kind: Kind, name: str) -> str:
    """Return the name of a tensor among those of all kinds."""
    return f"{kind}/{name}"


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write sharded tensors, by `key_of`, to a backup's folder; all processes must call it together."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with _quiet():
        save(dict(tensors), checkpoint_id=folder / _FOLDER)


def stored_in_shards(folder: Path, kind: Kind) -> dict[str, TensorStorageMetadata]:
    """Return what a backup stores of one kind in sharded form: shapes and dtypes by name."""
    if not (folder / _FOLDER).is_dir():
        return {}
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    stored = FileSystemReader(folder / _FOLDER).read_metadata().state_dict_metadata
    prefix = key_of(kind, "")
    return {
        key.removeprefix(prefix): facts
        for key, facts in stored.items()
        if key.startswith(prefix) and isinstance(facts, TensorStorageMetadata)
    }


def read_shards(folder: Path, into: Mapping[str, torch.Tensor], *, is_together: bool) -> None:
    """Read tensors, by `key_of`, into those of the same keys; all processes read their own rows `is_together`."""
    from torch.distributed.checkpoint.state_dict_loader import load

    with _quiet():
        load(dict(into), checkpoint_id=folder / _FOLDER, no_dist=not is_together)


def read_whole(folder: Path, kind: Kind) -> dict[str, torch.Tensor]:
    """Return all whole tensors of one kind in a backup, sharded or not, on the CPU."""
    file = folder / f"{kind}.safetensors"
    found = dict(read_safetensors(file)[0]) if file.exists() else {}
    stored = stored_in_shards(folder, kind)
    if stored:
        whole = {name: torch.empty(facts.size, dtype=facts.properties.dtype) for name, facts in stored.items()}
        read_shards(folder, {key_of(kind, name): tensor for name, tensor in whole.items()}, is_together=False)
        found |= whole
    return found


def has_averages(folder: Path) -> bool:
    """Return whether a backup contains EMA weights."""
    return (folder / "ema.safetensors").is_file()


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out torch's warning that a single process reads without others, which is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.distributed.*")
        yield
