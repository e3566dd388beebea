"""The beta distribution, with alpha = weight and beta = bias, as in OneTrainer."""

from __future__ import annotations

import math

from modules.diffusion.timesteps.spec import DistributionSpec

_MAX_TERMS = 5000
_PRECISION = 1e-15
_TINY = 1e-300


def beta_cdf(x: float, weight: float, bias: float) -> float:
    """Return the regularised incomplete beta function I_x(weight, bias).

    By the continued fraction of the DLMF, 8.17.22, which converges quickly below the mean; above it the symmetry
    `I_x(a, b) = 1 - I_(1-x)(b, a)` (8.17.4) is used.
    """
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (weight + 1.0) / (weight + bias + 2.0):
        return 1.0 - _below_mean(1.0 - x, bias, weight)
    return _below_mean(x, weight, bias)


def _below_mean(x: float, a: float, b: float) -> float:
    log_factor = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_factor) / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return `1 + d_1 / (1 + d_2 / (1 + ...))` by the algorithm of Lentz."""
    value, numerators, denominators = 1.0, 1.0, 0.0
    for term in range(1, _MAX_TERMS):
        m, is_odd = divmod(term, 2)
        if is_odd:
            coefficient = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominators = 1.0 / (1.0 + coefficient * denominators or _TINY)
        numerators = 1.0 + coefficient / numerators or _TINY
        value *= numerators * denominators
        if abs(numerators * denominators - 1.0) < _PRECISION:
            break
    return value


def _problem(weight: float, bias: float) -> str:
    if weight > 0.0 and bias > 0.0:
        return ""
    wrong = f"the weight of {weight:g}" if weight <= 0.0 else f"the bias of {bias:g}"
    return f"{wrong} is not above 0, and Beta has the two as its alpha and beta (1 and 1 are uniform)"


SPEC = DistributionSpec(
    "beta",
    "Beta",
    "Beta has the weight as alpha and the bias as beta: 2 and 2 prefer the middle, 0.5 and 0.5 both ends.",
    beta_cdf,
    problem=_problem,
)
