"""A density that rises like a sigmoid, as in OneTrainer: `p(x) ~ sigmoid(weight (x - (bias + 0.5)))`."""

from __future__ import annotations

import math

from modules.diffusion.timesteps.spec import DistributionSpec

_NEARLY_UNIFORM = 1e-6
_FAR_BELOW = -30.0  # there softplus(z) = exp(z) to the last bit


def sigmoid_cdf(x: float, weight: float, bias: float) -> float:
    """Return the probability of a fraction below `x`.

    The integral of the density is `softplus(weight (x - centre)) / weight`, with the centre at `bias + 0.5`.
    """
    if abs(weight) < _NEARLY_UNIFORM:
        return x
    centre = bias + 0.5
    at_0, at_x, at_1 = (weight * (v - centre) for v in (0.0, x, 1.0))
    highest = max(at_0, at_1)
    if highest < _FAR_BELOW:  # the softplus of all would vanish
        at_0, at_x, at_1 = (math.exp(v - highest) for v in (at_0, at_x, at_1))
    else:
        at_0, at_x, at_1 = (_softplus(v) for v in (at_0, at_x, at_1))
    return (at_x - at_0) / (at_1 - at_0)


def _softplus(z: float) -> float:
    """Return `log(1 + exp(z))` without overflow."""
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


SPEC = DistributionSpec(
    "sigmoid",
    "Sigmoid",
    "Sigmoid prefers noisy timesteps for a positive weight, clean ones for a negative; the bias moves the slope.",
    sigmoid_cdf,
)
