"""The fields of methods that train on their finished images, newly noised: each is declared here once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.objectives.rollout_facts import RolloutFacts
from modules.objectives.rollout_fields import known_size
from modules.settings.field import Setting

OldPolicy = Literal["copy", "linear", "delayed"]

_DECAYS: dict[OldPolicy, tuple[int, float, float]] = {  # the steps before it rises, its rise per step, its maximum
    "copy": (0, 0.0, 0.0),
    "linear": (0, 0.001, 0.5),
    "delayed": (75, 0.0075, 0.999),
}


def old_policy_decay(kind: OldPolicy, step: int) -> float:
    """Return how much of its former values the old model keeps before a step, when the trained one is added to it.

    Zheng et al. 2025 (arXiv 2509.16117), section 3.3, with the values of the authors' code: "copy" is always 0,
    "linear" rises to 0.5 in 500 steps, "delayed" is 0 for 75 steps and then rises to 0.999.
    """
    flat, rise, highest = _DECAYS[kind]
    return 0.0 if step < flat else min((step - flat) * rise, highest)


TimestepsPerImage = Annotated[
    int,
    *Interval(ge=1, le=64),
    Setting(
        "Timesteps per image",
        "At how many random timesteps an optimizer step trains on each image. More give a steadier gradient and "
        "take longer. Published: from 4 to as many as denoising steps.",
    ),
]
UpdatesPerRollout = Annotated[
    int,
    *Interval(ge=1, le=64),
    Setting(
        "Steps per rollout",
        "How many optimizer steps train on the same images, each at other timesteps and with other noise.",
    ),
]
FollowingPolicy = Annotated[
    OldPolicy,
    Setting(
        "Sampling model",
        "How the model that samples follows the trained one before each rollout. Faster learns faster, slower is "
        "more stable. It is a second copy of the trained weights: small for a LoRA, for a fine-tune as large as "
        "they are.",
        choice_labels={"copy": "Copy", "linear": "Average, up to 0.5", "delayed": "Average, up to 0.999"},
        choice_help={
            "copy": "Always the trained model itself.",
            "linear": "Keeps a share of its former weights that rises from 0 to 0.5 in 500 steps.",
            "delayed": "The trained model for 75 steps; then keeps a share that rises to 0.999 within 133 steps.",
        },
    ),
]


def rollout_of(settings: Any, *, predicts_before_training: bool = False) -> RolloutFacts:
    """Return how a method samples, whose settings have these fields and the ones of `rollout_fields`."""
    return RolloutFacts(
        settings.steps,
        settings.guidance,
        samples_per_prompt=settings.group_size,
        trained_timesteps=settings.timesteps_per_image,
        predicts_before_training=predicts_before_training,
        size=known_size(settings.size),
        sampler=settings.sampler,
    )
