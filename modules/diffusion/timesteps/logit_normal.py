"""The logit-normal distribution of Stable Diffusion 3 (Esser et al. 2024, section 3.1, eq. 19)."""

from __future__ import annotations

import math

from modules.diffusion.timesteps.spec import DistributionSpec


def logit_normal_cdf(x: float, weight: float, bias: float) -> float:
    """Return the probability that `sigmoid(z)` is below `x`, for z normal with mean `bias` and std `weight + 1`.

    The offset of 1 is OneTrainer's: the weight 0 is the paper's best setting, a standard deviation of 1.
    """
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    return 0.5 * math.erfc((bias - math.log(x / (1.0 - x))) / ((weight + 1.0) * math.sqrt(2.0)))


def _problem(weight: float, bias: float) -> str:
    if weight > -1.0:
        return ""
    return f"the weight of {weight:g} is not above -1: the standard deviation of Logit-normal is the weight plus 1"


SPEC = DistributionSpec(
    "logit_normal",
    "Logit-normal",
    "Logit-normal prefers the middle; the weight plus 1 is its spread, the bias moves it to more noise.",
    logit_normal_cdf,
    problem=_problem,
)
