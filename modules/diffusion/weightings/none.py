"""No weighting: the losses of all timesteps count alike."""

from __future__ import annotations

from modules.diffusion.weightings.spec import WeightingSpec

SPEC = WeightingSpec("none", "None", lambda process, timesteps_B, gamma: None)
