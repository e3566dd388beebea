"""The uniform distribution, with which the models were trained (Ho et al. 2020, algorithm 1)."""

from __future__ import annotations

from modules.diffusion.timesteps.spec import DistributionSpec


def uniform_cdf(x: float, weight: float, bias: float) -> float:
    """Return the probability of a fraction below `x`; no parameter has an effect."""
    return x


SPEC = DistributionSpec(
    "uniform",
    "Uniform",
    "Uniform trains all timesteps equally often, as the models were trained.",
    uniform_cdf,
    uses_weight=False,
    uses_bias=False,
)
