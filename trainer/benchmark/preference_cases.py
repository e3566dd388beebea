"""The runs of the preference benchmark: each method with settings that were found for the demo model.

They differ from those for a full-size model. Its latents have 256 values instead of 16,384 and more, so the mean
log-probability varies more and needs a larger clip range; and it is small, so it needs a larger learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

NUM_STEPS = 10
GUIDANCE = 2.0
CLIP_RANGE = 1e-2

_SAMPLING = {"steps": NUM_STEPS, "guidance": GUIDANCE}


@dataclass(frozen=True, slots=True)
class Case:
    """A run: the settings of its method, what it trains ("adapter" or "full"), for how long, and the
    reward that it should reach.

    An epoch covers every prompt once, or every pair.
    """

    method: Mapping[str, Any]
    trains: str
    learning_rate: float
    epochs: int
    batch_size: int
    goal: float
    training: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        """The name of its method."""
        return str(self.method["name"])


_ALIGNPROP = {
    "name": "alignprop",
    **_SAMPLING,
    "gradient_truncation": "fixed",
    "backprop_steps": 1,
}
_DPO = {"name": "dpo", "beta": 2000.0}
_ONLINE_DPO = {
    "name": "online_dpo",
    **_SAMPLING,
    "candidates": 8,
    "beta": 2000.0,
    "updates_per_rollout": 4,
}
_DDPO = {
    "name": "ddpo",
    **_SAMPLING,
    "samples_per_prompt": 2,
    "clip_range": CLIP_RANGE,
    "timestep_share": 0.5,
    "advantage": "batch",
}
_GRPO = {
    "name": "grpo",
    **_SAMPLING,
    "group_size": 8,
    "clip_range": CLIP_RANGE,
    "timestep_share": 0.5,
    "kl_weight": 0.0,
}

CASES: tuple[Case, ...] = (
    Case(_ALIGNPROP, "adapter", 1e-3, epochs=5, batch_size=12, goal=0.61),
    Case(_ALIGNPROP, "full", 1e-4, epochs=5, batch_size=12, goal=0.61),
    Case(_DPO, "adapter", 1e-3, epochs=10, batch_size=16, goal=0.64),
    Case(_DPO, "full", 1e-4, epochs=10, batch_size=16, goal=0.64),
    Case(_DDPO, "adapter", 5e-3, epochs=12, batch_size=24, goal=0.61),
    Case(_GRPO, "adapter", 5e-3, epochs=3, batch_size=6, goal=0.64),
)
