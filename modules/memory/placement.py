"""The placement of model parts on devices. Code requests a phase; nothing else moves a part.

A part on the training device has its layers there except the offloaded ones (`offload.py`), which stay on the offload
device throughout. A part whose weights can be read again is not offloaded after its phase: it leaves the memory until a
phase needs it again. Its parameters stay the same objects, with their shapes and dtypes, so that hooks and wrappers of
the part remain; their values are NaN until they are read again, so that code that used them anyway would not go
unnoticed.

The table of phases belongs to the trainer (`trainer/phases.py`); this module moves the parts and checks that no parked
part runs. That check is a forward pre-hook on each part and always on: next to a forward pass its cost is negligible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from modules.memory.checkpointing import offloaded_weights
from modules.memory.guard import DeviceGuard, PlacementError
from modules.memory.transfers import on_temp_device
from modules.system.devices import Device

DROPPED = Device("dropped")
"""The device of a part whose weights are not in memory."""


def drop_weights(module: nn.Module, device: Device) -> None:
    """Free the memory of a module's weights, in place: one NaN (or 0) on a device stands for each of them."""
    for weight in module.parameters():
        value = math.nan if weight.is_floating_point() else 0
        weight.data = torch.full((), value, dtype=weight.dtype, device=device.torch).expand(weight.shape)


def refill_weights(module: nn.Module, other: nn.Module) -> None:
    """Give a module the weights of another one with the same layers, in place; both then share them.

    Raises ValueError where their weights have different names, shapes or dtypes.
    """
    weights, theirs = dict(module.named_parameters()), dict(other.named_parameters())
    facts, other_facts = ({n: (w.shape, w.dtype) for n, w in ws.items()} for ws in (weights, theirs))
    if facts != other_facts:
        different = sorted(n for n in facts.keys() | other_facts.keys() if facts.get(n) != other_facts.get(n))
        raise ValueError(f"the weights that were read again differ from those before, first {different[0]}")
    for name, weight in weights.items():
        weight.data = theirs[name].data


class ParkedPartError(PlacementError):
    """A part was run while it was parked on the offload device."""


class Placement:
    """Moves parts between the training and the offload device when the phase changes."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        *,
        train_device: Device,
        temp_device: Device,
        needed_in: Callable[[str], frozenset[str]],
        may_stay: Mapping[str, frozenset[str]] | None = None,
        read_again: Mapping[str, Callable[[], nn.Module]] | None = None,
        guard: DeviceGuard | None = None,
    ) -> None:
        """`needed_in(phase)` names the parts that must be on the training device; the others are offloaded.

        `may_stay` has, by phase, parts that stay where they are, because the device has room for them. The functions in
        `read_again` read a part again, on the CPU: such parts leave the memory after `drop_readable`, and after each
        phase from then on.
        """
        self.train_device = train_device
        self.temp_device = temp_device
        self._modules = dict(modules)
        self._needed_in = needed_in
        self._may_stay = may_stay or {}
        self._read_again = dict(read_again or {})
        self._drops = False
        self._guard = guard
        self._phase = ""
        self._devices = dict.fromkeys(self._modules, Device(""))
        self._phases_of_added: dict[str, frozenset[str]] = {}
        self._hooks = [hook for name in self._modules for hook in self._watch(name)]
        for name in self._modules:
            self._move(name, temp_device)

    def device_of(self, part: str) -> Device:
        """Return the device of a part; `DROPPED` for one whose weights are not in memory."""
        return self._devices.get(part, DROPPED)

    def add_part(self, name: str, module: nn.Module) -> None:
        """Place a part that was read later than the others, on the CPU."""
        self._modules[name] = module
        self._devices[name] = Device("")
        self._hooks += self._watch(name)
        is_needed = bool(self._phase) and name in self._needed_in(self._phase)
        self._move(name, self.train_device if is_needed else self.temp_device)

    def add(self, name: str, weights: nn.Module, *, phases: Collection[str]) -> None:
        """Place more weights, which are on the training device now and are needed there only in these phases."""
        self._modules[name] = weights
        self._phases_of_added[name] = frozenset(phases)
        self._devices[name] = self.train_device
        if self._phase not in phases:
            self._move(name, self.temp_device)

    def pin(self, name: str) -> None:
        """Leave a part to the caller, who moves it to the training device, where it stays in every phase."""
        del self._modules[name]
        self._devices[name] = self.train_device

    def enter(self, phase: str) -> None:
        """Move every part to its device in this phase: first offload unneeded parts, then load those it needs.

        Parts that may stay are not moved.
        """
        needed = self._needed_in(phase) | {n for n, phases in self._phases_of_added.items() if phase in phases}
        for name in self._modules:
            if name not in needed and name not in self._may_stay.get(phase, ()):
                self._leave(name)
        for name in needed:
            self._move(name, self.train_device)
        self._phase = phase

    def drop_readable(self) -> None:
        """Drop all parts that can be read again from memory, now and from now on after each phase."""
        self._drops = True
        for name in self._read_again:
            self._leave(name)

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Enter a phase temporarily, then the previous one again, also after an exception."""
        former = self._phase
        self.enter(phase)
        try:
            yield
        finally:
            if former:
                self.enter(former)

    @contextmanager
    def exchanged(self, name: str, exchange: Callable[[], None]) -> Iterator[None]:
        """Call `exchange` while a part is offloaded, and again at the end; in between it has other weights.

        The part returns to its device of the phase after both. So the two sets of weights are never on the training
        device together.
        """
        self._exchange(name, exchange)
        try:
            yield
        finally:
            self._exchange(name, exchange)

    def _exchange(self, name: str, exchange: Callable[[], None]) -> None:
        self._move(name, self.temp_device)
        exchange()
        self.enter(self._phase)

    @property
    def offloaded_ids(self) -> frozenset[int]:
        """The ids of the weights that stay on the offload device in every phase."""
        return frozenset(id(w) for module in self._modules.values() for w in offloaded_weights(module))

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the weights, buffers and gradients of the parts."""
        for module in self._modules.values():
            yield from (*module.parameters(), *module.buffers())
            yield from (p.grad for p in module.parameters() if p.grad is not None)

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Offload every part within this context, then move back the parts that were on the training device."""
        here = [name for name in self._modules if self._devices[name] == self.train_device]
        for name in here:
            self._move(name, self.temp_device)
        try:
            yield
        finally:
            for name in here:
                self._move(name, self.train_device)

    def close(self) -> None:
        """Remove the hooks and release the parts."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._modules.clear()

    def _leave(self, name: str) -> None:
        """Offload a part after its phase, or drop its weights. Its buffers stay: they are small, and not in files."""
        if not (self._drops and name in self._read_again):
            self._move(name, self.temp_device)
        elif self._devices[name] != DROPPED:
            drop_weights(self._modules[name], self.temp_device)
            self._devices[name] = DROPPED

    def _move(self, name: str, device: Device) -> None:
        if self._devices[name] == device:
            return
        module = self._modules[name]
        if self._devices[name] == DROPPED:
            if device == self.temp_device and device != self.train_device:
                return  # there is nothing to offload
            refill_weights(module, self._read_again[name]())
        offloaded_parameters = offloaded_weights(module)
        if not device.is_cpu or any(t.device.type != "cpu" for t in module.parameters()):
            gradients = [w.grad for w in offloaded_parameters if w.grad is not None]  # of earlier micro-batches
            offloaded = {id(t) for t in (*offloaded_parameters, *gradients)}
            parks = device == self.temp_device
            module._apply(lambda t: self._offload_copy(t) if parks or id(t) in offloaded else _copy_to(t, device))
        if self._guard is not None:
            self._guard.retag_module(module, device)
            self._guard.retag_in_place(offloaded_parameters, self.temp_device)
        self._devices[name] = device

    def _offload_copy(self, weight: torch.Tensor) -> torch.Tensor:
        return on_temp_device(weight, train_device=self.train_device, temp_device=self.temp_device)

    def _watch(self, name: str) -> list[RemovableHandle]:
        """Refuse forward passes of a part while it is not on the training device."""
        module = self._modules[name]
        # The children too: a VAE is called through its encoder or its decoder, not its own forward.
        return [e.register_forward_pre_hook(self._refuse_parked(name)) for e in (module, *module.children())]

    def _refuse_parked(self, name: str) -> Callable[[nn.Module, object], None]:
        def check(_module: nn.Module, _inputs: object) -> None:
            if self._devices[name] != self.train_device:
                raise ParkedPartError(
                    f"The part {name} ran in the phase {self._phase or 'none'!r} while parked on {self._devices[name]}."
                )

        return check


def _copy_to(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    return tensor.to(device.torch, non_blocking=tensor.is_pinned())


def free_cached_memory(device: Device) -> None:
    """Return unused cached GPU memory to the system, between phases."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
