"""Small runs of the methods that learn from rewards and preferences, the same for each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.objectives.registry import METHODS
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pairs import draw_pairs

CAPTIONS = ["a disc", "a square, red"]

# A method that is added needs a line here; one with a reference has a loss that uses it.
SHORT: dict[str, dict[str, Any]] = {
    "alignprop": {"steps": 3, "gradient_truncation": "fixed", "backprop_steps": 2, "guidance": 2.0},
    "dpo": {"beta": 100.0},
    "ddpo": {"steps": 3, "samples_per_prompt": 2, "guidance": 2.0, "kl_weight": 0.1},
    "grpo": {"steps": 3, "group_size": 2, "guidance": 1.0, "kl_weight": 0.1},
}

# Those of the registry that do not only denoise given images.
PREFERENCE_METHODS = [name for name in METHODS if name != "denoise"]


def draw_both(folder: Path) -> Path:
    """Draw two images in `images` and two pairs in `pairs`, with the same captions."""
    sizes = [(64, 64)] * len(CAPTIONS)
    draw_folder(folder / "images", sizes=sizes, captions=CAPTIONS)
    draw_pairs(folder / "pairs", sizes=sizes, captions=CAPTIONS)
    return folder


def preference_config(folder: Path, *, model: Path, drawn: Path, method: str, **changes: Any) -> Config:
    """Return a run of a method, one step an epoch, whose text encoders are trained too."""
    spec = METHODS[method]
    settings = {"name": method, **SHORT[method]}
    uses_pairs = spec.learns_from(spec.settings(**SHORT[method])) == "pairs"
    concept = {"path": str(drawn / "pairs"), "kind": "pairs"} if uses_pairs else {"path": str(drawn / "images")}
    config = small_config(
        folder,
        model=model,
        images=drawn / "images",
        general={"temp_device": "cpu:1"},
        concepts=[concept],
        training={"method": settings, "epochs": 2, "batch_size": 2},
        reward={"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}},
    )
    return laid_over(config, changes)
