"""Debiased estimation. Not supported yet."""

from __future__ import annotations

from modules.diffusion.weightings.spec import WeightingSpec

SPEC = WeightingSpec("debiased", "Debiased estimation")
