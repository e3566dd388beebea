"""The timestep distributions, one record each.

A timestep is a fraction of the schedule here: 0 is the clean image, 1 is pure noise. Each `cdf` returns the probability
of a fraction below `x`, for a noising weight and bias; the draws, the probability of each timestep and the window's
histogram all come from it. Esser et al. 2024 is "Scaling Rectified Flow Transformers for High-Resolution Image
Synthesis" (arXiv 2403.03206).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_NEARLY_UNIFORM = 1e-6  # a weight of Sigmoid
_FAR_BELOW = -30.0  # there softplus(z) = exp(z) to the last bit
_LOWEST, _HIGHEST = -1.0, 2.0 / (math.pi - 2.0)  # weights of Heavy tail, beyond which its map is not monotonic
_HALVINGS = 53
_TOP = 2.0  # of the inverted parabola
_MAX_TERMS = 5000  # of the continued fraction of Beta
_PRECISION = 1e-15
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class DistributionSpec:
    """A distribution of timesteps.

    `cdf(x, weight, bias)` returns the probability of a fraction below `x`, for x in [0, 1]: 0 at 0 and 1 at 1.
    `problem(weight, bias)` is a sentence if these parameters give no distribution, else empty; `cdf` is undefined for
    them.
    """

    name: str
    label: str
    help: str
    cdf: Callable[[float, float, float], float]
    uses_weight: bool = True
    uses_bias: bool = True
    problem: Callable[[float, float], str] = lambda weight, bias: ""


def uniform_cdf(x: float, weight: float, bias: float) -> float:
    """Return `x`: no parameter has an effect (Ho et al. 2020, algorithm 1)."""
    return x


def sigmoid_cdf(x: float, weight: float, bias: float) -> float:
    """Return the cdf of a density that rises like a sigmoid, as in OneTrainer: `sigmoid(weight (x - (bias + 0.5)))`.

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


def logit_normal_cdf(x: float, weight: float, bias: float) -> float:
    """Return the cdf of `sigmoid(z)` for z normal with mean `bias` and std `weight + 1` (Esser et al. 2024, eq. 19).

    The offset of 1 is OneTrainer's: the weight 0 is the paper's best setting, a standard deviation of 1.
    """
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    return 0.5 * math.erfc((bias - math.log(x / (1.0 - x))) / ((weight + 1.0) * math.sqrt(2.0)))


def _problem_of_logit_normal(weight: float, bias: float) -> str:
    if weight > -1.0:
        return ""
    return f"the weight of {weight:g} is not above -1: the standard deviation of Logit-normal is the weight plus 1"


def heavy_tail_cdf(x: float, weight: float, bias: float) -> float:
    """Return the cdf of mode sampling with heavy tails (Esser et al. 2024, eq. 20), the inverse of its map f.

    With `v = 1 - u`, eq. 20 is `f = v - weight (sin(pi v / 2)^2 - v)`, which increases in v; the inverse is found by
    bisection. The bias has no effect.
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


def _problem_of_heavy_tail(weight: float, bias: float) -> str:
    if _LOWEST <= weight <= _HIGHEST:
        return ""
    return f"the weight of {weight:g} is outside of {_LOWEST:g} to {_HIGHEST:.4g}, the range of Heavy tail"


def cos_map_cdf(x: float, weight: float, bias: float) -> float:
    """Return the cdf of uniform timesteps of the cosine schedule (Esser et al. 2024, eq. 21).

    It is the integral of `2 / (pi - 2 pi x + 2 pi x^2)`.
    """
    return 2.0 / math.pi * math.atan2(x, 1.0 - x)


def inverted_parabola_cdf(x: float, weight: float, bias: float) -> float:
    """Return the cdf of a density like a parabola, as in OneTrainer: `max(0, 2 - weight (x - (bias + 0.5))^2)`.

    It is the integral of the density between its zeros.
    """
    low, high = _support(weight, bias)
    at_low, at_x, at_high = (_integral(v, weight, bias) for v in (low, min(max(x, low), high), high))
    return (at_x - at_low) / (at_high - at_low)


def _support(weight: float, bias: float) -> tuple[float, float]:
    """Return the ends of the part of [0, 1] where the density is above 0; the second is not larger if there is none."""
    if weight <= 0.0:
        return 0.0, 1.0
    centre, reach = bias + 0.5, math.sqrt(_TOP / weight)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def _integral(x: float, weight: float, bias: float) -> float:
    distance = x - (bias + 0.5)
    return _TOP * distance - weight * distance**3 / 3.0


def _problem_of_inverted_parabola(weight: float, bias: float) -> str:
    low, high = _support(weight, bias)
    if high - low > 1e-9:
        return ""
    return f"with the weight {weight:g} and the bias {bias:g}, the parabola of Inverted parabola is 0 at every timestep"


def beta_cdf(x: float, weight: float, bias: float) -> float:
    """Return the cdf of the beta distribution, the regularised incomplete beta function I_x(weight, bias).

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


def _problem_of_beta(weight: float, bias: float) -> str:
    if weight > 0.0 and bias > 0.0:
        return ""
    wrong = f"the weight of {weight:g}" if weight <= 0.0 else f"the bias of {bias:g}"
    return f"{wrong} is not above 0, and Beta has the two as its alpha and beta (1 and 1 are uniform)"


_UNIFORM = DistributionSpec(
    "uniform",
    "Uniform",
    "Uniform trains all timesteps equally often, as the models were trained.",
    uniform_cdf,
    uses_weight=False,
    uses_bias=False,
)
_RECORDS = (
    _UNIFORM,
    DistributionSpec(
        "sigmoid",
        "Sigmoid",
        "Sigmoid prefers noisy timesteps for a positive weight, clean ones for a negative; the bias moves the slope.",
        sigmoid_cdf,
    ),
    DistributionSpec(
        "logit_normal",
        "Logit-normal",
        "Logit-normal prefers the middle; the weight plus 1 is its spread, the bias moves it to more noise.",
        logit_normal_cdf,
        problem=_problem_of_logit_normal,
    ),
    DistributionSpec(
        "heavy_tail",
        "Heavy tail",
        "Heavy tail prefers the middle for a weight above 0 and both ends for one below; no timestep is left out.",
        heavy_tail_cdf,
        uses_bias=False,
        problem=_problem_of_heavy_tail,
    ),
    DistributionSpec(
        "cos_map",
        "Cosine map",
        "Cosine map prefers the middle a little.",
        cos_map_cdf,
        uses_weight=False,
        uses_bias=False,
    ),
    DistributionSpec(
        "inverted_parabola",
        "Inverted parabola",
        "Inverted parabola prefers the timesteps around 0.5 plus the bias; a larger weight makes it narrower.",
        inverted_parabola_cdf,
        problem=_problem_of_inverted_parabola,
    ),
    DistributionSpec(
        "beta",
        "Beta",
        "Beta has the weight as alpha and the bias as beta: 2 and 2 prefer the middle, 0.5 and 0.5 both ends.",
        beta_cdf,
        problem=_problem_of_beta,
    ),
)

DEFAULT_DISTRIBUTION = _UNIFORM.name
DISTRIBUTIONS: Mapping[str, DistributionSpec] = {spec.name: spec for spec in _RECORDS}


def distribution_help() -> Mapping[str, str]:
    """Return a sentence for each distribution, by its name."""
    return {name: spec.help for name, spec in DISTRIBUTIONS.items()}


def distribution_labels() -> Mapping[str, str]:
    """Return the names of the distributions with their labels."""
    return {name: spec.label for name, spec in DISTRIBUTIONS.items()}


def help_on_all() -> str:
    """Return the help on the setting: a sentence on distributions, and one on each."""
    return f"How often each timestep is trained. {' '.join(spec.help for spec in DISTRIBUTIONS.values())}"


def names_with_weight() -> tuple[str, ...]:
    """Return the names of the distributions that a noising weight changes."""
    return tuple(spec.name for spec in DISTRIBUTIONS.values() if spec.uses_weight)


def names_with_bias() -> tuple[str, ...]:
    """Return the names of the distributions that a noising bias changes."""
    return tuple(spec.name for spec in DISTRIBUTIONS.values() if spec.uses_bias)
