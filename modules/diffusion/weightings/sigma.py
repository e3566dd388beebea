"""Sigma weighting, for flow matching. Not supported yet."""

from __future__ import annotations

from modules.diffusion.weightings.spec import WeightingSpec

SPEC = WeightingSpec("sigma", "Sigma")
