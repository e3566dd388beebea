"""The rewards, one line each. Torch-free: the factories are named and imported when a run begins."""

from __future__ import annotations

from collections.abc import Mapping

from modules.rewards.scorers import (
    aesthetic,
    brightness,
    clip_score,
    colour_target,
    compressibility,
    contrast,
    hps,
    image_reward,
    incompressibility,
    ocr,
    pickscore,
    sharpness,
    symmetry,
    user_code,
)
from modules.rewards.spec import RewardSpec

REWARDS: Mapping[str, RewardSpec] = {
    spec.name: spec
    for spec in (
        brightness.SPEC,
        colour_target.SPEC,
        contrast.SPEC,
        sharpness.SPEC,
        symmetry.SPEC,
        compressibility.SPEC,
        incompressibility.SPEC,
        ocr.SPEC,
        pickscore.SPEC,
        clip_score.SPEC,
        aesthetic.SPEC,
        hps.SPEC,
        image_reward.SPEC,
        user_code.SPEC,
    )
}


def reward_labels() -> Mapping[str, str]:
    """Return the rewards' labels by name."""
    return {name: spec.label for name, spec in REWARDS.items()}


def hold_out_labels() -> Mapping[str, str]:
    """Return the choices for the held-out reward: none, or any reward."""
    return {"none": "None", **reward_labels()}


def rewards_using(setting: str) -> tuple[str, ...]:
    """Return the names of the rewards that use a field of `Scorer`."""
    return tuple(name for name, spec in REWARDS.items() if setting in spec.settings)
