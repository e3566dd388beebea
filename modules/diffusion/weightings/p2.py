"""P2 weighting, whose gamma is an exponent. Not supported yet."""

from __future__ import annotations

from modules.diffusion.weightings.spec import WeightingSpec

SPEC = WeightingSpec("p2", "P2", uses_gamma=True)
