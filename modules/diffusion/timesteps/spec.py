"""The record of a timestep distribution. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _no_problem(weight: float, bias: float) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class DistributionSpec:
    """A distribution of timesteps, as fractions of the schedule: 0 is the clean image, 1 is pure noise.

    `cdf(x, weight, bias)` returns the probability of a fraction below `x`, for x in [0, 1]: 0 at 0 and 1 at 1. The
    probability of each timestep, the draws and the window's histogram all come from it. `problem(weight, bias)` is a
    sentence if these parameters give no distribution, else empty; `cdf` is undefined for them.
    """

    name: str
    label: str
    help: str
    cdf: Callable[[float, float, float], float]
    uses_weight: bool = True
    uses_bias: bool = True
    problem: Callable[[float, float], str] = _no_problem
