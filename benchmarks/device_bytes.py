"""The peak memory of a logical device on the CPU, which has no memory statistics of its own."""

from __future__ import annotations

import weakref

import torch

from modules.memory.guard import DeviceGuard
from modules.system.devices import Device


class DeviceBytes(DeviceGuard):
    """Counts the bytes of all storages that the guard has tagged with a logical device."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self._counted: dict[int, int] = {}
        self.live = 0
        self.peak = 0

    def start_over(self) -> None:
        """Reset the peak."""
        self.peak = self.live

    def _set(self, tensor: torch.Tensor, tag: str) -> None:
        super()._set(tensor, tag)
        storage = tensor.untyped_storage()
        key, is_here = storage._cdata, tag == self._device.name
        if key in self._counted and not is_here:
            self._forget(key)
        elif key not in self._counted and is_here:
            self._counted[key] = storage.nbytes()
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.live -= self._counted.pop(key, 0)
