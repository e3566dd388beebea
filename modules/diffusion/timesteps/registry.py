"""The timestep distributions, one line each. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping

from modules.diffusion.timesteps import (
    beta,
    cos_map,
    heavy_tail,
    inverted_parabola,
    logit_normal,
    sigmoid,
    uniform,
)
from modules.diffusion.timesteps.spec import DistributionSpec

DEFAULT_DISTRIBUTION = uniform.SPEC.name

DISTRIBUTIONS: Mapping[str, DistributionSpec] = {
    spec.name: spec
    for spec in (
        uniform.SPEC,
        sigmoid.SPEC,
        logit_normal.SPEC,
        heavy_tail.SPEC,
        cos_map.SPEC,
        inverted_parabola.SPEC,
        beta.SPEC,
    )
}


def distribution_labels() -> Mapping[str, str]:
    """Return the names of the distributions with their labels."""
    return {name: spec.label for name, spec in DISTRIBUTIONS.items()}
