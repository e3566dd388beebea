"""The device guard: catches on a processor what otherwise only a GPU would.

Every storage carries a tag, the logical device it was moved to. Under the guard each operation is looked at as it is
dispatched: inputs with different tags are an error, as they would be on real devices, and outputs inherit the tag.
Tensors nobody ever moved (constants, freshly drawn noise) have no tag and may meet anything, and so may tensors
without dimensions, as torch allows. Slow: for tests and the debug switch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from modules.system.devices import Device, pop_retag, push_retag

# Operations whose purpose is to go from one device to another.
_CROSSING = frozenset({torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default})
# Operations on lists of tensors. Torch splits such lists by device, and so they may hold tensors of several.
_LIST_WISE = ("aten::_foreach_", "aten::_fused_")
_FIRST_SWEEP = 64  # tags


class PlacementFault(RuntimeError):  # noqa: N818 - what its kinds have in common; each of them is named an error
    """Something was not where it must be: a fault of the program, which no setting mends and nothing may hide."""


class DeviceMixError(PlacementFault):
    """An operation met tensors of different devices."""


class DeviceGuard(TorchDispatchMode):
    """Tags storages with logical devices and refuses operations that mix them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tags: dict[int, tuple[StorageWeakRef, str]] = {}
        self._sweep_at = _FIRST_SWEEP
        self._lock = threading.Lock()  # the loader's threads move tensors, too

    def __enter__(self) -> Self:
        push_retag(self.retag)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        pop_retag()

    def retag(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        """Return the tensor with the tag of a device: itself where it has it, else a copy, as on real devices."""
        if self.tag_of(tensor) == device.name:
            return tensor
        with torch.utils._python_dispatch._disable_current_modes():
            copy = tensor.clone()
        self._set(copy, device.name)
        return copy

    def retag_module(self, module: torch.nn.Module, device: Device) -> None:
        """Give every parameter and buffer of a module the tag of a device, where they lie."""
        self.retag_in_place((*module.parameters(), *module.buffers()), device)

    def retag_in_place(self, tensors: Iterable[torch.Tensor], device: Device) -> None:
        """Give tensors the tag of a device, where they lie."""
        for tensor in tensors:
            self._set(tensor, device.name)

    def tag_of(self, tensor: torch.Tensor) -> str | None:
        """Return the logical device of a tensor's storage, or None for one that was never moved."""
        # While its weak reference is kept, no other storage can come to lie at the same address.
        found = self._tags.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[1]

    def _set(self, tensor: torch.Tensor, tag: str) -> None:
        storage = tensor.untyped_storage()
        with self._lock:
            self._tags[storage._cdata] = (StorageWeakRef(storage), tag)
            if len(self._tags) >= self._sweep_at:
                self._forget_the_dead()

    def _forget_the_dead(self) -> None:
        """Drop the tags of storages that are gone, each time there are twice as many tags as were alive.

        A weak reference keeps the small head of a storage alive. Those heads lie between the blocks that large tensors
        leave behind, which then cannot be used again: the process grew by 47 MB a step on the demo model.
        """
        self._tags = {key: entry for key, entry in self._tags.items() if not entry[0].expired()}
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._tags))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.name.startswith(_LIST_WISE):
            return self._list_wise(func, args, kwargs)
        tag = self._common_tag(func, _tensors_in((*args, *kwargs.values())))
        result = func(*args, **kwargs)
        if tag is not None:
            self._inherit(_tensors_in((result,)), tag)
        return result

    def _list_wise(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Look at an operation on lists of tensors, which does the same for the firsts, the seconds and so on."""
        lists = [a for a in args if isinstance(a, list | tuple)]
        tags = [self._common_tag(func, _tensors_in(one)) for one in zip(*lists, strict=False)]
        result = func(*args, **kwargs)
        if isinstance(result, list | tuple):
            for output, tag in zip(result, tags, strict=False):
                if tag is not None:
                    self._inherit(_tensors_in((output,)), tag)
        return result

    def _common_tag(self, func: Any, tensors: Iterable[torch.Tensor]) -> str | None:
        """Return the tag of some tensors. Raises DeviceMixError where they have several."""
        tags: dict[str, torch.Tensor] = {}
        for tensor in tensors:
            if tensor.dim() > 0 and (tag := self.tag_of(tensor)) is not None:
                tags[tag] = tensor
        if len(tags) > 1 and func not in _CROSSING:
            shapes = ", ".join(f"{tag}: {tuple(t.shape)}" for tag, t in sorted(tags.items()))
            raise DeviceMixError(f"{func} met tensors of different devices ({shapes}).")
        return next(iter(tags)) if len(tags) == 1 else None

    def _inherit(self, tensors: Iterable[torch.Tensor], tag: str) -> None:
        for tensor in tensors:
            if self.tag_of(tensor) is None:
                self._set(tensor, tag)


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among an operation's values and in their lists; several times faster than torch's own walk."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)
