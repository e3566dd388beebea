"""The rewards, one line each: the module of their record, which is imported when the record is read first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from modules.settings.lazy_variants import LazyRecords

if TYPE_CHECKING:  # the window is drawn without any of them
    from modules.rewards.spec import RewardSpec

REWARDS: Mapping[str, RewardSpec] = LazyRecords(
    "modules.rewards",
    {
        "brightness": "measures",
        "colour_target": "measures",
        "contrast": "measures",
        "sharpness": "measures",
        "symmetry": "measures",
        "compressibility": "measures",
        "incompressibility": "measures",
        "ocr": "records",
        "pickscore": "records",
        "clip_score": "records",
        "aesthetic": "records",
        "hps": "records",
        "image_reward": "records",
        "hpsv3": "records",
        "unified_reward": "records",
        "user_code": "records",
        "reward_server": "records",
        "vision_model": "records",
    },
)


def reward_labels() -> Mapping[str, str]:
    """Return the rewards' labels by name."""
    return {name: spec.label for name, spec in REWARDS.items()}


def reward_help() -> Mapping[str, str]:
    """Return a sentence for each reward, by its name, and for the choice of none."""
    return {"none": "No reward model is left out of the training.", **{n: spec.help for n, spec in REWARDS.items()}}


def hold_out_labels() -> Mapping[str, str]:
    """Return the choices for the held-out reward: none, or any reward."""
    return {"none": "None", **reward_labels()}


def rewards_using(setting: str) -> tuple[str, ...]:
    """Return the names of the rewards that use a field of `Scorer`."""
    return tuple(name for name, spec in REWARDS.items() if setting in spec.settings)
