"""Layer offloading: weights stay on the offload device and are copied to the training device while they are used.

The weights of an offloaded layer never leave the offload device: they are saved, averaged and updated by the optimizer
there, and its state and their gradients are there, too. Before its forward pass a layer gets copies on the training
device; the next layers' copies are fetched meanwhile, and after the pass they are dropped. So a frozen weight is copied
in one direction only. The gradient of a trained weight is copied back, and the optimizer step runs on the offload
device: fetching weight, gradient and optimizer state for it would be four times the traffic, for a computation that is
memory-bound anyway (Ren et al. 2021, "ZeRO-Offload", section 4). An adapter's weights are few and stay.

The backward pass needs the copies as well. Where each block is checkpointed, its recomputation fetches them again and
they live until the block's gradients are computed; the last layer's are kept for it, which needs them next. Without
that, autograd holds the copies of every layer until the end of the backward pass: correct, but nothing is saved, so
`modules/config/rules/training.py` rejects it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from modules.memory.offloaded_layers import choose_offloaded
from modules.memory.transfers import IncomingTensors, LateGradients, Transfers


@dataclass(frozen=True, eq=False)
class _Slot:
    """A weight's attribute in the module that uses it."""

    owner: nn.Module
    name: str
    weight: nn.Parameter

    def set_copy(self, copy: torch.Tensor) -> None:
        """Temporarily replace the weight with a copy."""
        # Bypasses `__setattr__`, which only accepts parameters.
        self.owner._parameters[self.name] = copy  # type: ignore[assignment]

    def restore(self) -> None:
        """Restore the weight itself."""
        self.owner._parameters[self.name] = self.weight


class OffloadedForward:
    """The forward pass of an offloaded layer."""

    def __init__(self, plain: Callable[..., Any], slots: Sequence[_Slot], part: LayerOffload) -> None:
        self.plain = plain
        self.slots = slots
        self._part = part

    @property
    def weights(self) -> list[nn.Parameter]:
        """The offloaded weights."""
        return [slot.weight for slot in self.slots]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        copies = self._part.fetch(self)
        try:
            for slot, copy in zip(self.slots, copies, strict=True):
                slot.set_copy(copy)
            del copies
            return self.plain(*args, **kwargs)
        finally:  # a recomputation ends with an exception once all needed tensors exist
            for slot in self.slots:
                slot.restore()


class LayerOffload:
    """The offloaded layers of one part. While one is computed, the next ones are fetched.

    Their order is recorded in the first pass; a backward pass runs in reverse. Layers are fetched ahead up to the size
    of the second largest layer, at least one. So the training device never holds more than the two largest, and a large
    layer after small ones arrives in time.
    """

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._gradients = LateGradients(transfers)
        self._order: list[OffloadedForward] = []
        self._former: int | None = None
        self._ahead: deque[tuple[OffloadedForward, IncomingTensors]] = deque()
        self._last: tuple[OffloadedForward, list[torch.Tensor]] | None = None
        self.most_ahead_bytes = 0

    def begin(self) -> None:
        """Start a forward pass: copies that were prefetched and never used may be out of date."""
        self._former = self._last = None
        self._ahead.clear()
        self._gradients.drop()

    def fetch(self, layer: OffloadedForward) -> list[torch.Tensor]:
        """Return copies of a layer's weights on the training device; gradients flow through them to the weights."""
        last, self._last = self._last, None
        goes_back, following = self._following(layer)
        if last is not None and last[0] is layer:  # its forward pass was the newest
            copies = last[1]
        else:
            del last  # freed before this one needs the memory
            copies = self._next(layer).take()
            if torch.is_grad_enabled() and not goes_back and not following:
                self._last = layer, [copy.detach() for copy in copies]  # as they are outside of any graph
        num_bytes = sum(weight.nbytes for ahead, _ in self._ahead for weight in ahead.weights)
        for one in following[len(self._ahead) :]:
            num_bytes += sum(weight.nbytes for weight in one.weights)
            if self._ahead and num_bytes > self.most_ahead_bytes:
                break
            self._ahead.append((one, self._transfers.bring(one.weights)))
        return self._link(layer.weights, copies)

    def _next(self, layer: OffloadedForward) -> IncomingTensors:
        """Return the copies of a layer, which were fetched ahead if it is the one that was expected."""
        if self._ahead and self._ahead[0][0] is layer:
            return self._ahead.popleft()[1]
        self._ahead.clear()  # other layers: freed before this one needs the memory
        return self._transfers.bring(layer.weights)

    def _link(self, weights: list[nn.Parameter], copies: list[torch.Tensor]) -> list[torch.Tensor]:
        trained = [i for i, weight in enumerate(weights) if weight.requires_grad]
        if not trained or not torch.is_grad_enabled():
            return copies
        fetched = [copies[i] for i in trained]
        linked = _FetchWeights.apply(self._gradients, fetched, *(weights[i] for i in trained))  # type: ignore[no-untyped-call]
        for i, copy in zip(trained, linked, strict=True):
            copies[i] = copy
        return copies

    def _following(self, layer: OffloadedForward) -> tuple[bool, list[OffloadedForward]]:
        """Return whether this is a backward pass, and the layers after this one, as far as they are known."""
        if layer not in self._order:
            self._order.append(layer)
        here, former, last = self._order.index(layer), self._former, len(self._order) - 1
        self._former = here
        goes_back = former == here + 1 or (former != here - 1 and here == last > 0)
        return goes_back, self._order[:here][::-1] if goes_back else self._order[here + 1 :]


class _FetchWeights(torch.autograd.Function):
    """Connects a layer's weights on the offload device with their copies on the training device."""

    @staticmethod
    def forward(
        ctx: Any, late: LateGradients, copies: list[torch.Tensor], *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the copies as if they were computed from the weights here."""
        ctx.late, ctx.weights = late, weights
        ctx.set_materialize_grads(False)
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the copies on the offload device, or None for those that follow later."""
        return (None, None, *ctx.late.deliver(ctx.weights, gradients))


def offload_layers(
    blocks: Sequence[nn.Module], *, fraction: float, resident: Collection[nn.Parameter], transfers: Transfers
) -> LayerOffload | None:
    """Offload a share of a part's blocks; return None if the share is less than a block.

    `fraction` is relative to the blocks' weights; `resident` ones stay with the part. The weights are not moved here: a
    `Placement` does that.
    """
    stays = {id(weight) for weight in resident}
    slots = [_slots_of(block, stays) for block in blocks]
    sizes = [sum(slot.weight.nbytes for slot in of_block) for of_block in slots]
    offloaded = choose_offloaded(sizes, fraction)
    if not any(offloaded):
        return None
    part = LayerOffload(transfers)
    part.most_ahead_bytes = sorted([0, *compress(sizes, offloaded)])[-2]
    for block, of_block, is_offloaded in zip(blocks, slots, offloaded, strict=True):
        if is_offloaded:
            block.forward = OffloadedForward(block.forward, of_block, part)
    return part


def _slots_of(block: nn.Module, stays: Collection[int]) -> list[_Slot]:
    return [
        _Slot(module, name, weight)
        for module in block.modules()
        for name, weight in module._parameters.items()
        if weight is not None and id(weight) not in stays
    ]
