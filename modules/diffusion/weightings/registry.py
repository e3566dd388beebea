"""The loss weightings, one line each. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping

from modules.diffusion.weightings import debiased, min_snr, none, p2, sigma, soft_min_snr
from modules.diffusion.weightings.spec import WeightingSpec

WEIGHTINGS: Mapping[str, WeightingSpec] = {
    spec.name: spec
    for spec in (
        none.SPEC,
        min_snr.SPEC,
        soft_min_snr.SPEC,
        debiased.SPEC,
        p2.SPEC,
        sigma.SPEC,
    )
}


def weighting_labels() -> Mapping[str, str]:
    """Return the weightings' names with their labels."""
    return {name: spec.label for name, spec in WEIGHTINGS.items()}
