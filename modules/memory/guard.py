"""The device guard: detects on a CPU the device errors that otherwise only occur on a GPU.

Every storage has a tag, the logical device it was moved to. Under the guard each operation is checked when it is
dispatched: inputs with different tags are an error, as on real devices, and outputs inherit the tag.
Tensors that were never moved (constants, fresh noise) have no tag and are compatible with anything, and so are tensors
without dimensions, as in torch. Slow: for tests and the debug switch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from modules.system.devices import Device, pop_guard, push_guard

# Operations that copy from one device to another.
_CROSSING = frozenset({torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default})
# Operations on lists of tensors. Torch groups such lists by device, so they may contain tensors of several devices.
_LIST_WISE = ("aten::_foreach_", "aten::_fused_")
_FIRST_SWEEP = 64  # tags


class PlacementError(RuntimeError):
    """Something is on the wrong device: a bug in the program, which no setting fixes and which must not be hidden."""


class DeviceMixError(PlacementError):
    """The inputs of an operation are on different devices."""


class DeviceGuard(TorchDispatchMode):
    """Tags storages with logical devices and rejects operations that mix them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tags: dict[int, tuple[StorageWeakRef, str]] = {}
        self._sweep_at = _FIRST_SWEEP
        self._lock = threading.Lock()  # the loader's threads move tensors, too

    def __enter__(self) -> Self:
        push_guard(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        pop_guard()

    def retag(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        """Return a tensor with a device's tag: itself if it has it already, else a copy, as on real devices."""
        if self.tag_of(tensor) == device.name:
            return tensor
        with torch.utils._python_dispatch._disable_current_modes():
            copy = tensor.clone()
        self._set(copy, device.name)
        return copy

    def note_pinned(self, tensor: torch.Tensor) -> None:
        """Do nothing: pinning does not change the device of a tensor."""

    def retag_module(self, module: torch.nn.Module, device: Device) -> None:
        """Set the tag of every parameter and buffer of a module, in place."""
        self.retag_in_place((*module.parameters(), *module.buffers()), device)

    def retag_in_place(self, tensors: Iterable[torch.Tensor], device: Device) -> None:
        """Set the tag of tensors, in place."""
        for tensor in tensors:
            self._set(tensor, device.name)

    def tag_of(self, tensor: torch.Tensor) -> str | None:
        """Return the logical device of a tensor's storage, or None for one that was never moved."""
        # While its weak reference is kept, no other storage can come to lie at the same address.
        tag = self._tags.get(tensor.untyped_storage()._cdata)
        return None if tag is None else tag[1]

    def _set(self, tensor: torch.Tensor, tag: str) -> None:
        storage = tensor.untyped_storage()
        with self._lock:
            self._tags[storage._cdata] = (StorageWeakRef(storage), tag)
            if len(self._tags) >= self._sweep_at:
                self._forget_the_dead()

    def _forget_the_dead(self) -> None:
        """Drop the tags of freed storages, each time there are twice as many tags as live storages.

        A weak reference keeps a storage's small header alive. Those headers fragment the memory that large tensors
        leave behind, so that it cannot be reused: the process grew by 47 MB per step on the demo model.
        """
        self._tags = {key: entry for key, entry in self._tags.items() if not entry[0].expired()}
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._tags))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.name.startswith(_LIST_WISE):
            return self._list_wise(func, args, kwargs)
        tag = self._common_tag(func, tensors_in((*args, *kwargs.values())))
        result = func(*args, **kwargs)
        if tag is not None:
            self._inherit(tensors_in((result,)), tag)
        return result

    def _list_wise(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Check an operation on lists of tensors: of all lists the first items belong together, and so on."""
        lists = [a for a in args if isinstance(a, list | tuple)]
        tags = [self._common_tag(func, tensors_in(one)) for one in zip(*lists, strict=False)]
        result = func(*args, **kwargs)
        if isinstance(result, list | tuple):
            for output, tag in zip(result, tags, strict=False):
                if tag is not None:
                    self._inherit(tensors_in((output,)), tag)
        return result

    def _common_tag(self, func: Any, tensors: Iterable[torch.Tensor]) -> str | None:
        """Return the tag that tensors share; None if none has one. Raises DeviceMixError if they have several."""
        tags: dict[str, torch.Tensor] = {}
        for tensor in tensors:
            if tensor.dim() > 0 and (tag := self.tag_of(tensor)) is not None:
                tags[tag] = tensor
        if len(tags) > 1 and func not in _CROSSING:
            shapes = ", ".join(f"{tag}: {tuple(t.shape)}" for tag, t in sorted(tags.items()))
            raise DeviceMixError(f"{func} got tensors on different devices ({shapes}).")
        return next(iter(tags)) if len(tags) == 1 else None

    def _inherit(self, tensors: Iterable[torch.Tensor], tag: str) -> None:
        kind = tag.partition(":")[0]
        for tensor in tensors:
            # The result of a copy may be on another real device than what was copied.
            if tensor.device.type == kind and self.tag_of(tensor) is None:
                self._set(tensor, tag)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors in an operation's values and their lists; several times faster than torch's own tree walk."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
