"""Mode sampling with heavy tails (Esser et al. 2024, "Scaling Rectified Flow Transformers", section 3.1, eq. 20)."""

from __future__ import annotations

import math

from modules.diffusion.timesteps.spec import DistributionSpec

_LOWEST, _HIGHEST = -1.0, 2.0 / (math.pi - 2.0)  # beyond them the map of eq. 20 is not monotonic
_HALVINGS = 53


def heavy_tail_cdf(x: float, weight: float, bias: float) -> float:
    """Return the probability that `f(u)` is below `x` for a uniform u: the inverse of f, found by bisection.

    With `v = 1 - u`, eq. 20 is `f = v - weight (sin(pi v / 2)^2 - v)`, which increases in v. The bias has no effect.
    """
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if middle - weight * (math.sin(0.5 * math.pi * middle) ** 2 - middle) < x:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _problem(weight: float, bias: float) -> str:
    if _LOWEST <= weight <= _HIGHEST:
        return ""
    return f"the weight of {weight:g} is outside of {_LOWEST:g} to {_HIGHEST:.4g}, the range of Heavy tail"


SPEC = DistributionSpec(
    "heavy_tail",
    "Heavy tail",
    "Heavy tail prefers the middle for a weight above 0 and both ends for one below; no timestep is left out.",
    heavy_tail_cdf,
    uses_bias=False,
    problem=_problem,
)
