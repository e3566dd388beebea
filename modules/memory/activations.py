"""Activation offloading: tensors that autograd saves for the backward pass are stored on the offload device.

Whole storages are moved, each once: several saved tensors may be views of one, and a view is restored with its original
strides, on which the last bits of a kernel's result can depend. On a GPU the copies overlap with computation in both
directions: a storage is sent as soon as it is saved, and while the backward pass uses one, the next one it will need is
already being fetched.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from modules.memory.transfers import IncomingTensors, OffloadedTensor, Transfers


class _OffloadedStorage:
    """An offloaded storage, as a flat tensor; a backward pass needs the storages in reverse order."""

    def __init__(self, sent: OffloadedTensor, source: StorageWeakRef, former: _OffloadedStorage | None) -> None:
        self.source = source
        self.num_views = 0
        self._sent = sent
        self._former = weakref.ref(former) if former is not None else None
        self._incoming: IncomingTensors | None = None
        self._num_taken = 0

    def bring(self, transfers: Transfers) -> IncomingTensors:
        """Start fetching it."""
        if self._incoming is None:
            self._incoming = transfers.bring([self._sent.tensor], after=self._sent.done)
        return self._incoming

    def take(self, transfers: Transfers) -> torch.Tensor:
        """Return it on the training device for one of its views, and start fetching the one that is needed next."""
        [flat] = self.bring(transfers).take()
        self._num_taken += 1
        if self._num_taken % self.num_views == 0:  # all views have it; a second backward pass counts from 0 again
            self._incoming = None
        former = self._former() if self._former is not None else None
        if former is not None:  # otherwise the graph has already freed it
            former.bring(transfers)
        return flat


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """A saved tensor, as a view of its storage."""

    kept: _OffloadedStorage
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def take(self, transfers: Transfers) -> torch.Tensor:
        """Return the tensor on the training device."""
        return self.kept.take(transfers).as_strided(self.size, self.stride, self.offset)


class _OffloadedStorages:
    """The storages that one forward pass offloads."""

    def __init__(self, module: nn.Module, transfers: Transfers) -> None:
        self._transfers = transfers
        self._weights = {w.untyped_storage().data_ptr() for w in (*module.parameters(), *module.buffers())}
        self._known: weakref.WeakValueDictionary[tuple[int, int, torch.dtype], _OffloadedStorage] = (
            weakref.WeakValueDictionary()
        )
        self._newest: weakref.ref[_OffloadedStorage] | None = None

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _View:
        """Return a view for autograd to save; the tensor itself if it is a weight, a scalar or on another device."""
        is_elsewhere = tensor.device.type != self._transfers.train_device.type
        if tensor.dim() == 0 or is_elsewhere or tensor.untyped_storage().data_ptr() in self._weights:
            return tensor
        kept = self._storage_of(tensor)
        kept.num_views += 1
        return _View(kept, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def unpack(self, packed: torch.Tensor | _View) -> torch.Tensor:
        """Return the saved tensor."""
        return packed if isinstance(packed, torch.Tensor) else packed.take(self._transfers)

    def _storage_of(self, tensor: torch.Tensor) -> _OffloadedStorage:
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor._version, tensor.dtype
        known = self._known.get(key)
        if known is not None and not known.source.expired():
            return known
        whole = tensor.detach().as_strided((storage.nbytes() // tensor.itemsize,), (1,), 0)
        former = self._newest() if self._newest is not None else None
        kept = _OffloadedStorage(self._transfers.send(whole), StorageWeakRef(storage), former)
        self._known[key] = kept
        self._newest = weakref.ref(kept)
        return kept


@contextmanager
def offloaded_activations(module: nn.Module, transfers: Transfers) -> Iterator[None]:
    """Offload the tensors that autograd saves inside the block. Weights and their views stay: they are not copies."""
    storages = _OffloadedStorages(module, transfers)
    with torch.autograd.graph.saved_tensors_hooks(storages.pack, storages.unpack):
        try:
            yield
        finally:
            transfers.let_go()
