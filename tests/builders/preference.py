"""Small runs of the methods that learn from rewards and preferences, the same for each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.objectives.registry import METHODS
from modules.objectives.spec import MethodSpec
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pairs import draw_pairs

CAPTIONS = ["a disc", "a square, blue"]

# Settings by a name of their own: every method but the denoising of given images, which a method that is added needs,
# too. A method that may have a reference has one.
SHORT: dict[str, dict[str, Any]] = {
    "alignprop": {
        "name": "alignprop",
        "steps": 3,
        "gradient_truncation": "fixed",
        "backprop_steps": 2,
        "guidance": 2.0,
    },
    "srpo": {
        "name": "alignprop",
        "steps": 3,
        "gradient_truncation": "direct",
        "min_timestep": 1,
        "guidance": 2.0,
    },
    "srpo_own": {
        "name": "alignprop",
        "steps": 3,
        "gradient_truncation": "direct",
        "clean_images": "own",
        "min_timestep": 1,
        "guidance": 2.0,
    },
    "dpo": {"name": "dpo", "beta": 100.0},
    "mapo": {"name": "dpo", "loss": "mapo"},
    "online_dpo": {"name": "online_dpo", "steps": 3, "candidates": 2, "beta": 100.0, "updates_per_rollout": 2},
    "refreshed": {
        "name": "online_dpo",
        "steps": 3,
        "candidates": 3,
        "guidance": 2.0,
        "beta": 100.0,
        "updates_per_rollout": 2,
        "reference": "refreshed",
        "refresh_every": 1,
    },
    "pnapo": {
        "name": "online_dpo",
        "steps": 3,
        "candidates": 2,
        "beta": 100.0,
        "updates_per_rollout": 2,
        "loss_noise": "generated",
    },
    "spo": {"name": "online_dpo", "pairs": "steps", "steps": 4, "candidates": 2, "timestep_share": 1.0},
    "ddpo": {"name": "ddpo", "steps": 3, "samples_per_prompt": 2, "guidance": 2.0, "kl_weight": 0.1},
    "grpo": {"name": "grpo", "steps": 3, "group_size": 2, "guidance": 1.0, "kl_weight": 0.1},
    "mix_grpo": {
        "name": "grpo",
        "steps": 3,
        "group_size": 2,
        "guidance": 2.0,
        "timesteps": "window",
        "window_size": 1,
        "trust_region": "normalized",
        "inner_epochs": 2,
        "kl_weight": 0.1,
    },
    "nft": {
        "name": "nft",
        "steps": 3,
        "group_size": 2,
        "timesteps_per_image": 2,
        "updates_per_rollout": 2,
        "kl_weight": 0.1,
    },
    "awm": {
        "name": "nft",
        "objective": "advantage_weighted",
        "steps": 3,
        "group_size": 2,
        "timesteps_per_image": 1,
        "kl_weight": 0.1,
    },
    "dgpo": {
        "name": "dgpo",
        "steps": 3,
        "group_size": 2,
        "guidance": 2.0,
        "timesteps_per_image": 2,
        "updates_per_rollout": 2,
        "kl_weight": 0.1,
    },
    "dgpo_sampling": {
        "name": "dgpo",
        "reference": "sampling",
        "steps": 3,
        "group_size": 3,
        "guidance": 1.0,
        "timesteps_per_image": 1,
        "kl_weight": 0.1,
    },
}

NAMES = list(SHORT)
PLAIN_NAMES = [name for name in NAMES if name in METHODS]  # one for each method
NEEDED = {name for name in METHODS if name != "denoise"}


def spec_of(name: str) -> MethodSpec:
    """Return the record of a method by the name of its settings."""
    return METHODS[SHORT[name]["name"]]


def settings_of(name: str) -> Any:
    """Return the settings of that name."""
    return spec_of(name).settings(**SHORT[name])


def needs_reference(name: str) -> bool:
    """Return whether its loss compares the model with a reference."""
    return spec_of(name).needs_reference(settings_of(name))


def draw_both(folder: Path) -> Path:
    """Draw two images in `images` and two pairs in `pairs`, with the same captions."""
    sizes = [(64, 64)] * len(CAPTIONS)
    draw_folder(folder / "images", sizes=sizes, captions=CAPTIONS)
    draw_pairs(folder / "pairs", sizes=sizes, captions=CAPTIONS)
    return folder


def preference_config(folder: Path, *, model: Path, drawn: Path, method: str, **changes: Any) -> Config:
    """Return a run of a method by the name of its settings, two epochs of one accumulation group each."""
    uses_pairs = spec_of(method).learns_from(settings_of(method)) == "pairs"
    concept = {"path": str(drawn / "pairs"), "kind": "pairs"} if uses_pairs else {"path": str(drawn / "images")}
    config = small_config(
        folder,
        model=model,
        images=drawn / "images",
        general={"temp_device": "cpu:1"},
        concepts=[concept],
        training={"method": SHORT[method], "epochs": 2, "batch_size": 2},
        reward={"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}},
    )
    return laid_over(config, changes)
