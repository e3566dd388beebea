"""Cache entries in memory: of a run that writes none, or of a small cache that is read repeatedly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from modules.data.cache.shards import Keys, Numbers
from modules.data.cache.store import BrokenEntryError, EntryStore, convert_for_cache


class RememberingStore:
    """Entries of another store. The ones that are read first are kept in memory, up to `most_bytes` of them.

    A small dataset is read from disk once, not in each epoch. Threads may share it.
    """

    def __init__(self, store: EntryStore, *, most_bytes: int) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._entries: dict[str, dict[str, torch.Tensor]] = {}

    @property
    def folder(self) -> Path | None:
        """The folder of the other store."""
        return self._store.folder

    def has(self, key: str) -> bool:
        """Return whether there is an entry."""
        return self._store.has(key)

    def num_bytes(self, key: str) -> int:
        """Return the size of an entry; 0 for a missing one."""
        return self._store.num_bytes(key)

    def sizes(self, keys_NK: Keys) -> Numbers:
        """Return the sizes of the entries of many keys; 0 for missing ones."""
        return self._store.sizes(keys_NK)

    def write(self, key: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Store an entry and return its tensors as they are kept."""
        self._forget(key)
        return self._store.write(key, tensors)

    def read(self, key: str) -> dict[str, torch.Tensor]:
        """Return an entry's tensors. Raises BrokenEntryError where it is missing or damaged."""
        known = self._entries.get(key)
        if known is not None:
            return dict(known)
        tensors = self._store.read(key)
        if self._num_bytes + _num_bytes(tensors) <= self._most_bytes:
            self._num_bytes += _num_bytes(tensors)
            self._entries[key] = dict(tensors)
        return tensors

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there."""
        self._forget(key)
        self._store.remove(key)

    def _forget(self, key: str) -> None:
        self._num_bytes -= _num_bytes(self._entries.pop(key, {}))


class MemoryStore:
    """Entries in memory, for one run; nothing is written. `dtype` is as in `CacheStore`. Threads may share it."""

    folder = None

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        self._entries: dict[str, dict[str, torch.Tensor]] = {}

    def has(self, key: str) -> bool:
        """Return whether there is an entry."""
        return key in self._entries

    def num_bytes(self, key: str) -> int:
        """Return the size of an entry's tensors; 0 for a missing one."""
        return _num_bytes(self._entries.get(key, {}))

    def sizes(self, keys_NK: Keys) -> Numbers:
        """Return the sizes of the entries of many keys; 0 for missing ones."""
        return np.array([self.num_bytes(bytes(key).hex()) for key in keys_NK], np.int64)

    def write(self, key: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Keep copies of an entry's tensors and return them."""
        self._entries[key] = {name: t.clone() for name, t in convert_for_cache(tensors, self._dtype).items()}
        return dict(self._entries[key])

    def read(self, key: str) -> dict[str, torch.Tensor]:
        """Return an entry's tensors. Raises BrokenEntryError where it is missing."""
        try:
            return dict(self._entries[key])
        except KeyError as error:
            raise BrokenEntryError(f"{key} is not in memory") from error

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there."""
        self._entries.pop(key, None)


def _num_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(t.nbytes for t in tensors.values())
