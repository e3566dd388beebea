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
from modules.system.hardware import free_memory

_MAX_LEAVING = 4  # tensors; each is held on the GPU for as long as its copy takes
_LEFT_FREE_BYTES = 4 << 30  # of the computer's memory, for everything but weights that wait for the GPU


class IncomingTensors:
    """Tensors being copied to the training device."""

    def __init__(self, tensors: list[torch.Tensor], done: torch.cuda.Event | None = None) -> None:
        self._tensors = tensors
        self._done = done

    def take(self) -> list[torch.Tensor]:
        """Return the tensors; the computation after this call waits for them."""
        self._wait()
        return self._tensors

    def __del__(self) -> None:
        self._wait()  # not needed after all: this memory must not be reused while it is still written to

    def _wait(self) -> None:
        if self._done is not None:
            torch.cuda.current_stream(self._tensors[0].device).wait_event(self._done)
            self._done = None


@dataclass(frozen=True, eq=False)
class OffloadedTensor:
    """A tensor on the offload device, or being copied there."""

    tensor: torch.Tensor
    done: torch.cuda.Event | None = None

    @property
    def is_done(self) -> bool:
        """Whether the CPU may read it."""
        return self.done is None or self.done.query()


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

    @property
    def is_asynchronous(self) -> bool:
        """Whether the host continues while something is copied."""
        return self._outward is not None

    @torch.no_grad()
    def bring(self, tensors: Sequence[torch.Tensor], *, after: torch.cuda.Event | None = None) -> IncomingTensors:
        """Start copying tensors to the training device, after the event `after`."""
        if self._inward is None or not tensors:
            return IncomingTensors([move(t.detach(), self.train_device) for t in tensors])
        with _disable_current_modes():
            here = [torch.empty_like(t, device=self.train_device.torch, pin_memory=False) for t in tensors]
            self._inward.wait_stream(torch.cuda.current_stream(self.train_device.torch))
            if after is not None:
                self._inward.wait_event(after)
            with torch.cuda.stream(self._inward):
                for copy, tensor in zip(here, tensors, strict=True):
                    copy.copy_(tensor, non_blocking=True)
            return IncomingTensors(here, self._inward.record_event())

    @torch.no_grad()
    def send(self, tensor: torch.Tensor) -> OffloadedTensor:
        """Start copying a tensor to the offload device; the CPU must not read it there before `done`."""
        if self._outward is None:
            return OffloadedTensor(move(tensor.detach(), self.temp_device))
        computing = torch.cuda.current_stream(self.train_device.torch)
        with _disable_current_modes():
            there = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._outward.wait_stream(computing)
            with torch.cuda.stream(self._outward):
                there.copy_(tensor.detach(), non_blocking=True)
            done = self._outward.record_event()
        self._leaving.append((tensor, done))
        while len(self._leaving) > _MAX_LEAVING:
            computing.wait_event(self._leaving.popleft()[1])
        return OffloadedTensor(there, done)

    def send_and_wait(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy tensors to the offload device and return them once the CPU may read them there."""
        sent = [self.send(t) for t in tensors]
        self.wait_for_sent()
        return [s.tensor for s in sent]

    def wait_for_sent(self) -> None:
        """Wait until the CPU may read all tensors that were sent."""
        if self._outward is not None:
            self._outward.synchronize()
            self.let_go()

    def let_go(self) -> None:
        """Release the tensors that were sent: the compute stream waits for the copies still in flight."""
        while self._leaving:
            torch.cuda.current_stream(self.train_device.torch).wait_event(self._leaving.popleft()[1])


class LateGradients:
    """Gradients on their way to weights on the offload device, while the backward pass continues.

    Autograd would read them at once, so they are added to the weights here: each as soon as it has arrived, and the
    rest at the end of the backward pass, where the host waits once. A weight with a hook (a fused backward pass) gets
    its gradient from autograd, and the host waits for it; so do all weights if copies are synchronous.
    """

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._pending: deque[tuple[torch.Tensor, OffloadedTensor]] = deque()
        self._is_awaited = False

    def deliver(
        self, weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Return the gradients for autograd, on the offload device; None for those that are added later.

        Called within a backward pass.
        """
        if not self._transfers.is_asynchronous or any(w._post_accumulate_grad_hooks for w in weights):
            moved = iter(self._transfers.send_and_wait([g for g in gradients if g is not None]))
            return [None if g is None else next(moved) for g in gradients]
        self._pending += [
            (w, self._transfers.send(g)) for w, g in zip(weights, gradients, strict=True) if g is not None
        ]
        if self._pending and not self._is_awaited:
            self._is_awaited = True
            torch.autograd.Variable._execution_engine.queue_callback(self._wait)
        while self._pending and self._pending[0][1].is_done:
            self._add(*self._pending.popleft())
        return [None] * len(weights)

    def drop(self) -> None:
        """Drop the gradients of a backward pass that did not end."""
        self._pending.clear()
        self._is_awaited = False

    def _wait(self) -> None:
        self._is_awaited = False
        self._transfers.wait_for_sent()
        while self._pending:
            self._add(*self._pending.popleft())

    @staticmethod
    @torch.no_grad()
    def _add(weight: torch.Tensor, sent: OffloadedTensor) -> None:
        """Add a gradient to a weight, in the weight's memory layout, as autograd does."""
        if weight.grad is not None:
            weight.grad += sent.tensor
        elif sent.tensor.stride() == weight.stride():
            weight.grad = sent.tensor
        else:
            weight.grad = torch.empty_like(weight).copy_(sent.tensor)


def on_temp_device(tensor: torch.Tensor, *, train_device: Device, temp_device: Device) -> torch.Tensor:
    """Return a tensor on the offload device, pinned if a GPU will fetch it and the computer allows that much.

    Torch rounds what it pins up to a power of two (ATen/core/CachingHostAllocator.h), and the system cannot move it to
    the disk: the 24 GB of FLUX.1 take 37.
    """
    is_fetched = train_device.type == "cuda" and temp_device.is_cpu
    if not is_fetched or tensor.is_pinned() or not _has_room_to_pin(tensor.nbytes):
        return tensor.to(temp_device.torch)
    try:
        there = torch.empty_like(tensor, device="cpu", pin_memory=True)
    except RuntimeError:  # more than the system lets a program lock
        return tensor.to(temp_device.torch)
    return there.copy_(tensor.detach())


def _has_room_to_pin(num_bytes: int) -> bool:
    """Return whether a tensor can be pinned: enough memory stays free, or torch has unused pinned memory."""
    needed = (1 << max(0, num_bytes - 1).bit_length()) + _LEFT_FREE_BYTES
    if needed <= (free := free_memory()):
        return True
    stats = torch.cuda.host_memory_stats_as_nested_dict()
    unused = int(stats["allocated_bytes"]["current"] - stats["active_bytes"]["current"]) if stats else 0
    return needed <= free + unused
