"""A density shaped like an inverted parabola, as in OneTrainer: `p(x) ~ max(0, 2 - weight (x - (bias + 0.5))^2)`."""

from __future__ import annotations

import math

from modules.diffusion.timesteps.spec import DistributionSpec

_TOP = 2.0


def inverted_parabola_cdf(x: float, weight: float, bias: float) -> float:
    """Return the probability of a fraction below `x`: the integral of the density between its zeros."""
    low, high = _support(weight, bias)
    at_low, at_x, at_high = (_integral(v, weight, bias) for v in (low, min(max(x, low), high), high))
    return (at_x - at_low) / (at_high - at_low)


def _support(weight: float, bias: float) -> tuple[float, float]:
    """Return the part of [0, 1] where the density is above 0; the second is not above the first where there is none."""
    if weight <= 0.0:
        return 0.0, 1.0
    centre, reach = bias + 0.5, math.sqrt(_TOP / weight)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def _integral(x: float, weight: float, bias: float) -> float:
    distance = x - (bias + 0.5)
    return _TOP * distance - weight * distance**3 / 3.0


def _problem(weight: float, bias: float) -> str:
    low, high = _support(weight, bias)
    if high - low > 1e-9:
        return ""
    return f"with the weight {weight:g} and the bias {bias:g}, the parabola of Inverted parabola is 0 at every timestep"


SPEC = DistributionSpec(
    "inverted_parabola",
    "Inverted parabola",
    "Inverted parabola prefers the timesteps around 0.5 plus the bias; a larger weight makes it narrower.",
    inverted_parabola_cdf,
    problem=_problem,
)
