"""CosMap: uniform timesteps of the cosine schedule, for rectified flow (Esser et al. 2024, section 3.1, eq. 21)."""

from __future__ import annotations

import math

from modules.diffusion.timesteps.spec import DistributionSpec


def cos_map_cdf(x: float, weight: float, bias: float) -> float:
    """Return the probability of a fraction below `x`: the integral of `2 / (pi - 2 pi x + 2 pi x^2)`."""
    return 2.0 / math.pi * math.atan2(x, 1.0 - x)


SPEC = DistributionSpec(
    "cos_map",
    "Cosine map",
    "Cosine map prefers the middle a little.",
    cos_map_cdf,
    uses_weight=False,
    uses_bias=False,
)
