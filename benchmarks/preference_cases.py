"""The runs of the preference benchmark: each method with settings that were found for the demo model.

They differ from settings for a full-size model. The demo's latents have 256 values instead of 16,384 and more, so the
mean log-probability varies more and needs a larger clip range. A small model also needs a larger learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NUM_STEPS = 10
"""Of the images that are measured, and those for pairs."""

_CLIP_RANGE = 1e-2


@dataclass(frozen=True, slots=True)
class Case:
    """A run: the settings of its method, what it trains ("adapter" or "full"), for how long, and the reward to reach.

    An epoch covers every prompt once, or every pair. `min_strength` is the smallest noising strength of the training
    noise. `variant` names what is special about its settings. `rates` are the learning rates that were tried, if
    `python -m benchmarks preference --choose` chose among them.
    """

    method: Mapping[str, Any]
    trains: str
    learning_rate: float
    epochs: int
    batch_size: int
    goal: float
    min_strength: float = 0.0
    variant: str = ""
    rates: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The name of its method."""
        return str(self.method["name"])


_ALIGNPROP = {
    "name": "alignprop",
    "steps": NUM_STEPS,
    "guidance": 2.0,
    "gradient_truncation": "fixed",
    "backprop_steps": 1,
}
_DPO = {"name": "dpo", "beta": 2000.0}
# Without guidance, sampling takes half the time.
_ONLINE_DPO = {
    "name": "online_dpo",
    "steps": NUM_STEPS,
    "guidance": 1.0,
    "candidates": 8,
    "beta": 2000.0,
    "updates_per_rollout": 4,
}
_DDPO = {
    "name": "ddpo",
    "steps": NUM_STEPS,
    "guidance": 1.0,
    "samples_per_prompt": 4,
    "tracker_size": 16,
    "tracker_min_count": 4,
    "clip_range": _CLIP_RANGE,
    "inner_epochs": 2,
    "timestep_share": 0.5,
}
_GRPO = {
    "name": "grpo",
    "steps": NUM_STEPS,
    "guidance": 1.0,
    "group_size": 8,
    "clip_range": _CLIP_RANGE,
    "inner_epochs": 2,
    "timestep_share": 0.5,
    "kl_weight": 0.0,
}
# With a fifth of GRPO's latents. Any sampler will do, so few denoising steps are enough.
_NFT = {
    "name": "nft",
    "steps": 5,
    "guidance": 1.0,
    "group_size": 5,
    "timesteps_per_image": 4,
    "old_policy": "copy",
    "kl_weight": 0.0,
}
_DGPO = {**_NFT, "name": "dgpo", "clip_range": _CLIP_RANGE}

CASES: tuple[Case, ...] = (
    Case(_ALIGNPROP, "adapter", 2e-3, epochs=6, batch_size=12, goal=0.61),
    Case(_ALIGNPROP, "full", 3e-4, epochs=6, batch_size=12, goal=0.61),
    Case(_DPO, "adapter", 3e-3, epochs=10, batch_size=16, goal=0.64),
    Case(_DPO, "full", 3e-4, epochs=10, batch_size=16, goal=0.64),
    Case(_ONLINE_DPO, "adapter", 3e-3, epochs=2, batch_size=6, goal=0.72),
    Case(_ONLINE_DPO, "full", 3e-4, epochs=2, batch_size=6, goal=0.72),
    Case(_DDPO, "adapter", 5e-3, epochs=5, batch_size=12, goal=0.61),
    Case(_DDPO, "full", 5e-4, epochs=5, batch_size=12, goal=0.61),
    Case({**_GRPO, "inner_epochs": 1}, "adapter", 5e-3, epochs=3, batch_size=6, goal=0.64),
    Case(_GRPO, "full", 5e-4, epochs=2, batch_size=6, goal=0.64),
    Case(_NFT, "adapter", 4e-3, epochs=1, batch_size=3, goal=0.64),
    Case(_NFT, "full", 5e-4, epochs=1, batch_size=3, goal=0.64),
    Case(_DGPO, "adapter", 4e-3, epochs=1, batch_size=3, goal=0.55, min_strength=0.4),
    Case(_DGPO, "full", 5e-4, epochs=1, batch_size=3, goal=0.55, min_strength=0.4),
)

# On a flow model: LoRA only, with the settings above. Their learning rates were chosen among `rates`.
_FLOW_GRPO = {**_GRPO, "inner_epochs": 1, "timesteps": "window", "window_size": 2}
_RATES = (5e-4, 1e-3, 2e-3, 4e-3)
_FLOW_NFT = {**_NFT, "steps": NUM_STEPS, "group_size": 4, "timesteps_per_image": 2}


def _flow_nft(
    method: Mapping[str, Any], learning_rate: float, goal: float, noise: float, rates: Sequence[float]
) -> Case:
    steps = f"{method['steps']} denoising steps"
    variant = f"{steps}, noise from {noise:g}" if noise else steps
    return Case(method, "adapter", learning_rate, 1, 3, goal, min_strength=noise, variant=variant, rates=tuple(rates))


FLOW_CASES: tuple[Case, ...] = (
    Case(_FLOW_GRPO, "adapter", 1e-3, epochs=3, batch_size=6, goal=0.6, variant="window of 2", rates=_RATES),
    _flow_nft(_NFT, 2e-3, 0.45, noise=0.0, rates=(2e-3, 4e-3, 8e-3)),
    _flow_nft(_FLOW_NFT, 2e-3, 0.45, noise=0.0, rates=(2e-3, 4e-3, 8e-3)),
    _flow_nft(_FLOW_NFT, 4e-3, 0.5, noise=0.4, rates=(2e-3, 4e-3, 8e-3)),
    _flow_nft(_FLOW_NFT, 2e-3, 0.55, noise=0.6, rates=(1e-3, 2e-3, 4e-3)),
)


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo model: its preset, its cases, and the guidance with which measured images and pairs are sampled."""

    preset: str
    guidance: float
    cases: tuple[Case, ...]


DEMOS: Mapping[str, Demo] = {"demo": Demo("#demo", 2.0, CASES), "flow": Demo("#demo flow", 3.0, FLOW_CASES)}
