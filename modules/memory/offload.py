"""Layers that wait on the offload device, and are on the training device only while they are computed.

The weights of a waiting layer never leave the offload device: there they are saved, averaged and moved by the
optimizer, whose state and gradients are there, too. Before its forward pass a layer is lent copies on the training
device, the next layer's copies set out meanwhile, and after the pass they are dropped. So a frozen weight travels one
way only. Of a learning weight the gradient comes back, and the step is made where it rests: to bring weight, gradient
and optimizer state in for it would be four times the traffic, for a calculation that memory bounds anyway (Ren et al.
2021, "ZeRO-Offload", section 4). An adapter's weights are few and stay.

The backward pass needs the copies as well. Where each block is checkpointed, its recomputation lends them anew and
they live exactly until the block's gradients are there. Without that, autograd holds the copies of every layer until
the backward pass is over: right, but nothing is saved, and `modules/config/rules/offload.py` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from modules.memory.offloaded_layers import choose_offloaded
from modules.memory.transfers import Arriving, Transfers


@dataclass(frozen=True, eq=False)
class _Slot:
    """The place of a weight in the module that computes with it."""

    owner: nn.Module
    name: str
    weight: nn.Parameter

    def lend(self, copy: torch.Tensor) -> None:
        """Put a copy in the weight's place for a while."""
        # Past `__setattr__`, which takes nothing but parameters.
        self.owner._parameters[self.name] = copy  # type: ignore[assignment]

    def put_back(self) -> None:
        """Put the weight itself in its place again."""
        self.owner._parameters[self.name] = self.weight


class OffloadedForward:
    """The forward pass of a layer that waits."""

    def __init__(self, plain: Callable[..., Any], slots: Sequence[_Slot], part: LayerOffload) -> None:
        self.plain = plain
        self.slots = slots
        self._part = part

    @property
    def weights(self) -> list[nn.Parameter]:
        """What waits."""
        return [slot.weight for slot in self.slots]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        copies = self._part.lend(self)
        try:
            for slot, copy in zip(self.slots, copies, strict=True):
                slot.lend(copy)
            del copies
            return self.plain(*args, **kwargs)
        finally:  # a recomputation ends with an exception once it has all that is wanted
            for slot in self.slots:
                slot.put_back()


class LayerOffload:
    """The waiting layers of one part. While one is computed, the one that comes next is fetched.

    Their order is learned from the first pass; in a backward pass it runs the other way.
    """

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._order: list[OffloadedForward] = []
        self._former: int | None = None
        self._ahead: tuple[OffloadedForward, Arriving] | None = None

    def begin(self) -> None:
        """Begin a forward pass: what was fetched ahead and never used may be out of date by now."""
        self._former = self._ahead = None

    def lend(self, layer: OffloadedForward) -> list[torch.Tensor]:
        """Return copies of a layer's weights on the training device, through which gradients find their way back."""
        ahead, self._ahead = self._ahead, None
        arriving = ahead[1] if ahead is not None and ahead[0] is layer else None
        del ahead  # another layer's: gone before this one's needs the room
        copies = (arriving or self._transfers.bring(layer.weights)).take()
        following = self._following(layer)
        if following is not None:
            self._ahead = following, self._transfers.bring(following.weights)
        return self._linked(layer.weights, copies)

    def _linked(self, weights: list[nn.Parameter], copies: list[torch.Tensor]) -> list[torch.Tensor]:
        learning = [i for i, weight in enumerate(weights) if weight.requires_grad]
        if not learning or not torch.is_grad_enabled():
            return copies
        lent = [copies[i] for i in learning]
        linked = _Lent.apply(self._transfers, lent, *(weights[i] for i in learning))  # type: ignore[no-untyped-call]
        for i, copy in zip(learning, linked, strict=True):
            copies[i] = copy
        return copies

    def _following(self, layer: OffloadedForward) -> OffloadedForward | None:
        """Return the layer that is computed after one, as far as that is known."""
        if layer not in self._order:
            self._order.append(layer)
        here, former, last = self._order.index(layer), self._former, len(self._order) - 1
        self._former = here
        goes_back = former == here + 1 or (former != here - 1 and here == last > 0)
        following = here - 1 if goes_back else here + 1
        return self._order[following] if 0 <= following <= last else None


class _Lent(torch.autograd.Function):
    """Stands between the weights of a layer, at rest, and their copies on the training device."""

    @staticmethod
    def forward(
        ctx: Any, transfers: Transfers, copies: list[torch.Tensor], *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the copies as if they were made of the weights here."""
        ctx.transfers = transfers
        ctx.set_materialize_grads(False)
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the copies, on the device where the weights wait."""
        moved = iter(ctx.transfers.send_and_wait([g for g in gradients if g is not None]))
        return (None, None, *(None if g is None else next(moved) for g in gradients))


def offload_layers(
    blocks: Sequence[nn.Module], *, fraction: float, resident: Collection[nn.Parameter], transfers: Transfers
) -> LayerOffload | None:
    """Have a share of the blocks of a part wait on the offload device; None where that is none of them.

    `fraction` is that of the blocks' weights; `resident` ones stay where the part is. The weights are not moved
    here: a placement does that.
    """
    stays = {id(weight) for weight in resident}
    slots = [_slots_of(block, stays) for block in blocks]
    sizes = [sum(slot.weight.nbytes for slot in of_block) for of_block in slots]
    offloaded = choose_offloaded(sizes, fraction)
    if not any(offloaded):
        return None
    part = LayerOffload(transfers)
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
