"""The watchdog: within its first steps every part that is trained must have learned something, or the run stops.

Learning is a gradient that is finite and not zero, and a weight that has moved by it. A step does not count where there
is a reason for nothing to happen: a learning rate of zero, a loss of exactly zero (an empty mask, a weight of zero), or
a method that says so. One parameter of a part is proof enough: the down matrix of a fresh LoRA gets no gradient in its
first step, its up matrix does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from modules.optim.param_groups import TrainGroup
from modules.system.errors import DarkroomError

FIRST_STEPS = 10


class Watchdog:
    """Looks at each part until it has been seen to learn; from then on it costs nothing."""

    def __init__(self, groups: Sequence[TrainGroup]) -> None:
        self._unproven = {g.part: g for g in groups}
        self._num_idle = dict.fromkeys(self._unproven, 0)
        self._had_gradient: set[str] = set()
        self._stirred: set[str] = set()
        self._before: dict[str, tuple[nn.Parameter, torch.Tensor]] = {}

    def before_move(self, part: str, parameters: Sequence[nn.Parameter]) -> None:
        """Before some weights of a part move, with their gradients in place: keep one that has a gradient to follow."""
        if part in self._unproven and (found := _learning_parameter(parameters)) is not None:
            self._had_gradient.add(part)
            self._stirred.add(part)
            self._before[part] = found, found.detach().clone()

    def after_move(self, part: str) -> None:
        """After they moved: let go of the part if it has learned."""
        seen = self._before.pop(part, None)
        if seen is not None and not torch.equal(*seen):
            del self._unproven[part]

    def check(self, learning_rates: Mapping[str, float], *, may_be_zero: bool) -> None:
        """After a step: count it for the parts that have not learned yet.

        Raises DarkroomError, naming the part, where one has had its steps and learned nothing.
        """
        stirred, self._stirred = self._stirred, set()
        for part, group in list(self._unproven.items()):
            if not group.is_training:
                del self._unproven[part]
            elif learning_rates.get(part) and (part in stirred or not may_be_zero):
                self._num_idle[part] += 1
                if self._num_idle[part] >= FIRST_STEPS:
                    raise _idle(part, part in self._had_gradient)


def _learning_parameter(parameters: Sequence[nn.Parameter]) -> nn.Parameter | None:
    """Return one of some parameters whose gradient is finite and not zero.

    Kernels and matrices come first: among their weights are some near zero, which even the first steps of a long
    warm-up move; the weights of a norm are all about one, and such a step is lost in their rounding.
    """
    for parameter in sorted(parameters, key=lambda p: -p.dim()):
        if parameter.grad is not None and parameter.grad.numel():
            largest = parameter.grad.abs().max()
            if bool(largest.isfinite() & (largest > 0)):
                return parameter
    return None


def _idle(part: str, had_gradient: bool) -> DarkroomError:
    name = part.replace("_", " ")
    if had_gradient:
        return DarkroomError(
            f"The {name} does not learn: in {FIRST_STEPS} steps its weights did not move, though they had gradients.",
            advice="Raise its learning rate, or keep its weights in float32: steps this small are lost in rounding.",
        )
    return DarkroomError(
        f"The {name} does not learn: in {FIRST_STEPS} steps no gradient arrived at it.",
        advice="Switch its training off, choose other layers, or look at the weights of the loss.",
    )
