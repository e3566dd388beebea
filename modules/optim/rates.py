"""The usual learning rates of optimizers, and the rates with which weights are updated."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

EffectiveRate = Callable[[Mapping[str, Any]], Any]
"""From a parameter group to its effective learning rate: a float, a tensor of shape (), or None if not known yet."""


class LearningRates(NamedTuple):
    """The range of learning rates with which an optimizer trains at all; `usual` names the typical ones, as text."""

    lowest: float
    highest: float
    usual: str


class UsualRates(NamedTuple):
    """The usual learning rates for an adapter and for a fine-tune, and the reason, which follows "it" in a sentence."""

    adapter: LearningRates
    full: LearningRates
    why: str


def distance_times_rate(group: Mapping[str, Any]) -> Any:
    """Return the `effective_rate` of Prodigy and D-Adaptation: the estimated distance times the learning rate.

    The schedule has scaled the learning rate already (Mishchenko and Defazio 2023, algorithm 1).
    """
    return group["d"] * group["lr"]


def scheduled_rate(group: Mapping[str, Any]) -> Any:
    """Return the `effective_rate` of the schedule-free optimizers, with their own warm-up; None before a step."""
    return group["scheduled_lr"] or None


ADAM = UsualRates(
    adapter=LearningRates(1e-7, 0.05, "between 0.00005 and 0.001"),
    full=LearningRates(1e-9, 0.001, "between 0.000001 and 0.00002"),
    why="changes every weight by about the learning rate at each step",
)
SIGN = UsualRates(
    adapter=LearningRates(1e-8, 0.005, "between 0.00001 and 0.0003"),
    full=LearningRates(1e-10, 1e-4, "between 0.0000001 and 0.000005"),
    why="changes every weight by the full learning rate at each step",
)
PLAIN = UsualRates(
    adapter=LearningRates(1e-5, 100.0, "between 0.01 and 1"),
    full=LearningRates(1e-6, 10.0, "between 0.0001 and 0.1"),
    why="changes weights in proportion to the raw gradient, which is small",
)
LARGER = UsualRates(
    adapter=LearningRates(1e-7, 1.0, "between 0.0005 and 0.02"),
    full=LearningRates(1e-9, 0.05, "between 0.00001 and 0.001"),
    why="needs somewhat larger learning rates than AdamW",
)
_OF_ITS_OWN = LearningRates(0.05, 20.0, "1, or between 0.5 and 2")
FINDS_ITSELF = UsualRates(
    adapter=_OF_ITS_OWN, full=_OF_ITS_OWN, why="finds its learning rate itself and only scales it by this number"
)
