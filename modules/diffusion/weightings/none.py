"""No weighting: all timesteps have the same weight."""

from __future__ import annotations

from modules.diffusion.weightings.spec import WeightingSpec

SPEC = WeightingSpec("none", "None", lambda process, timesteps_B, gamma: None)
