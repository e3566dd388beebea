"""Copies between the training and the offload device; between a GPU and CPU memory they overlap with computation.

A GPU's copies run on two streams of their own, one per direction, from and to pinned memory (the CUDA programming
guide, "asynchronous concurrent execution"). The destination on the GPU is allocated by the compute stream, and the copy
waits for that stream's earlier work: so memory is reused in the compute stream's own order, only the requested tensors
are in flight, and `record_stream` is not needed, under which a CPU that runs far ahead of the GPU allocates more and
more memory. A tensor that is sent is held until the compute stream has been made to wait for its copy. Between other
devices, and where both are the CPU, the same calls copy synchronously.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from modules.system.devices import Device, move

_MOST_LEAVING = 4  # tensors; each is held on the GPU for as long as its copy takes


class Arriving:
    """Tensors being copied to the training device."""

    def __init__(self, tensors: list[torch.Tensor], done: torch.cuda.Event | None = None) -> None:
        self._tensors = tensors
        self._done = done

    def take(self) -> list[torch.Tensor]:
        """Return the tensors; the computation that follows waits for them."""
        self._wait()
        return self._tensors

    def __del__(self) -> None:
        self._wait()  # not needed after all: this memory must not be reused while it is still written to

    def _wait(self) -> None:
        if self._done is not None:
            torch.cuda.current_stream(self._tensors[0].device).wait_event(self._done)
            self._done = None


@dataclass(frozen=True, eq=False)
class Sent:
    """A tensor on the offload device, or being copied there."""

    tensor: torch.Tensor
    done: torch.cuda.Event | None = None


class Transfers:
    """The copies between one pair of devices."""

    def __init__(self, train_device: Device, temp_device: Device) -> None:
        self.train_device = train_device
        self.temp_device = temp_device
        self._inward: torch.cuda.Stream | None = None
        self._outward: torch.cuda.Stream | None = None
        if train_device.type == "cuda" and temp_device.is_cpu:
            self._inward = torch.cuda.Stream(train_device.torch)
            self._outward = torch.cuda.Stream(train_device.torch)
        self._leaving: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()

    @torch.no_grad()
    def bring(self, tensors: Sequence[torch.Tensor], *, after: torch.cuda.Event | None = None) -> Arriving:
        """Start copying tensors to the training device, after the event `after`."""
        if self._inward is None or not tensors:
            return Arriving([move(t.detach(), self.train_device) for t in tensors])
        with _disable_current_modes():
            here = [torch.empty_like(t, device=self.train_device.torch, pin_memory=False) for t in tensors]
            self._inward.wait_stream(torch.cuda.current_stream(self.train_device.torch))
            if after is not None:
                self._inward.wait_event(after)
            with torch.cuda.stream(self._inward):
                for copy, tensor in zip(here, tensors, strict=True):
                    copy.copy_(tensor, non_blocking=True)
            return Arriving(here, self._inward.record_event())

    @torch.no_grad()
    def send(self, tensor: torch.Tensor) -> Sent:
        """Start copying a tensor to the offload device; the CPU must not read it there before `done`."""
        if self._outward is None:
            return Sent(move(tensor.detach(), self.temp_device))
        computing = torch.cuda.current_stream(self.train_device.torch)
        with _disable_current_modes():
            there = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._outward.wait_stream(computing)
            with torch.cuda.stream(self._outward):
                there.copy_(tensor.detach(), non_blocking=True)
            done = self._outward.record_event()
        self._leaving.append((tensor, done))
        while len(self._leaving) > _MOST_LEAVING:
            computing.wait_event(self._leaving.popleft()[1])
        return Sent(there, done)

    def send_and_wait(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy tensors to the offload device and return them once the CPU may read them there."""
        sent = [self.send(t) for t in tensors]
        if self._outward is not None:
            self._outward.synchronize()
            self.let_go()
        return [s.tensor for s in sent]

    def let_go(self) -> None:
        """Release the tensors that were sent: the compute stream waits for the copies still in flight."""
        while self._leaving:
            torch.cuda.current_stream(self.train_device.torch).wait_event(self._leaving.popleft()[1])


def on_temp_device(tensor: torch.Tensor, *, train_device: Device, temp_device: Device) -> torch.Tensor:
    """Return a tensor on the offload device, pinned if a GPU will fetch it and the computer allows that much."""
    is_fetched = train_device.type == "cuda" and temp_device.is_cpu
    if not is_fetched or tensor.is_pinned():
        return tensor.to(temp_device.torch)
    try:
        there = torch.empty_like(tensor, device="cpu", pin_memory=True)
    except RuntimeError:  # more than the system lets a program lock
        return tensor.to(temp_device.torch)
    return there.copy_(tensor.detach())
