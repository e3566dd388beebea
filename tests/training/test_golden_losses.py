"""Small runs whose every number is stored: what is trained changes only when someone means it to.

Stored numbers hold to a relative 1e-5, since processors round differently. With `DARKROOM_GOLDEN_EXACT=1`, on the
machine and versions that wrote them, every number, trained weight and sample has to be the same to the last bit.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import USUAL_LAYERS, laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.models import write_sd_folder
from tests.builders.more_models import write_sdxl_folder
from tests.builders.runs import Ran, run
from trainer.events import RewardMeasured, SampleReady, StepFinished, ValidationFinished

GOLDEN = PROGRAM_ROOT / "tests" / "golden"
EXACT = "DARKROOM_GOLDEN_EXACT"
WRITERS: dict[str, Callable[[Path], Path]] = {
    "tiny_sd": write_sd_folder,
    "tiny_sdxl": write_sdxl_folder,
    "tiny_sdxl_v": lambda folder: write_sdxl_folder(folder, zero_snr=True),
}
Tree = dict[str, Any]

LORA: Tree = {
    "training": {
        "epochs": 4,
        "batch_size": 2,
        "accumulation_steps": 2,
        "learning_rate": 3e-3,
        "schedule": {"name": "linear", "warmup_steps": 2},
        "loss": {"weighting": "min_snr"},
    },
    "adapter": {"dropout": 0.1},
    "data": {"caption_dropout": 0.1},
}
FINE_TUNE: Tree = {
    "training": {
        "trains": "full",
        "epochs": 4,
        "batch_size": 2,
        "accumulation_steps": 2,
        "learning_rate": 3e-4,
        "schedule": {"name": "cosine", "warmup_steps": 2},
        "ema": {"mode": "train_device", "decay": 0.9},
    },
    "parts": {"unet": {"checkpointing": "whole"}, "text_encoder": {"stop_after": {"n": 3, "unit": "epoch"}}},
    "data": {"caption_dropout": 0.1, "latent_cache": False},
}
IN_16_BITS: Tree = {
    "training": {"precision": "bfloat16", "low_precision_updates": "stochastic"},
    "parts": {part: {"dtype": "bfloat16"} for part in ("unet", "text_encoder", "text_encoder_2")},
}
ALIGNPROP: Tree = {
    "training": {
        "epochs": 4,
        "learning_rate": 3e-3,
        "method": {"name": "alignprop", "probability": 0.6, "steps": 4, "backprop_steps": 2, "guidance": 2.0},
    },
    "adapter": {"dropout": 0.1},
    "reward": {
        "models": [{"kind": "brightness"}, {"kind": "symmetry", "weight": 0.5}],
        "measure_every": {"n": 5, "unit": "step"},
        "num_images": 2,
    },
}
SAMPLE = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 3, "guidance": 2.0}
WATCHED: Tree = {
    "training": {"epochs": 3, "loss": {"weighting": "min_snr"}, "ema": {"mode": "train_device", "decay": 0.9}},
    "validation": {"every": {"n": 3, "unit": "step"}, "num_timesteps": 3},
    "sampling": {"every": {"n": 4, "unit": "step"}, "at_start": True, "prompts": [SAMPLE]},
}


@dataclass(frozen=True)
class Golden:
    """A run to remember: its model, its settings, how close its numbers stay on other processors."""

    model: str
    settings: tuple[Tree, ...]
    num_steps: int
    loss_rel: float = 1e-5
    gradient_rel: float = 1e-3
    has_validation: bool = False


RUNS = {
    "sd_lora": Golden("tiny_sd", (LORA,), 12),
    "sdxl_lora": Golden("tiny_sdxl", (LORA,), 12),
    "sdxl_v_lora": Golden("tiny_sdxl_v", (LORA,), 12),
    "sd_fine_tune": Golden("tiny_sd", (FINE_TUNE,), 12),
    "sdxl_fine_tune": Golden("tiny_sdxl", (FINE_TUNE,), 12),
    # What is rounded to 16 bits is far from exact on another processor.
    "sd_fine_tune_bfloat16": Golden("tiny_sd", (FINE_TUNE, IN_16_BITS), 12, loss_rel=2e-2, gradient_rel=0.2),
    "sd_alignprop": Golden("tiny_sd", (ALIGNPROP,), 20),
    "sdxl_alignprop": Golden("tiny_sdxl", (ALIGNPROP,), 20),
    "sd_validation": Golden("tiny_sd", (WATCHED,), 15, has_validation=True),
}


def numbers_of(golden: Golden, model: Path, folder: Path) -> Tree:
    """Carry the run out and return everything it computed."""
    images = draw_folder(folder / "images", sizes=[(64, 64)] * 5 + [(96, 64)] * 4)
    config = small_config(folder, model=model, images=images, adapter=USUAL_LAYERS)
    if golden.has_validation:
        held_out = draw_folder(folder / "held out", sizes=[(96, 64), (64, 64)])
        concepts = [
            *(concept.model_dump() for concept in config.concepts),
            {"path": str(held_out), "kind": "validation", "name": "plain"},
            {"path": str(held_out), "kind": "validation", "name": "heavy", "loss_weight": 2.0},
        ]
        config = laid_over(config, {"concepts": concepts})
    for settings in golden.settings:
        config = laid_over(config, settings)
    return {name: values for name, values in _numbers(run(config)).items() if any(v is not None for v in values)}


def _numbers(ran: Ran) -> dict[str, list[Any]]:
    steps = ran.of(StepFinished)
    validations, rewards = ran.of(ValidationFinished), ran.of(RewardMeasured)
    return {
        "loss": [s.loss for s in steps],
        "gradient_norm": [s.gradient_norm for s in steps],
        "reward": [s.metrics.get("reward") for s in steps],
        "validation": [v.loss for v in validations],
        "validation_weighted": [v.weighted_loss for v in validations],
        "validation_by_concept": [x for v in validations for _, x in sorted(v.by_concept.items())],
        "validation_by_timestep": [x for v in validations for _, x in sorted(v.by_timestep.items())],
        "reward_measured": [x for r in rewards for _, x in sorted(r.by_reward_model.items())],
        "digest_of_weights": [_digest(ran.weights)],
        "digests_of_samples": [_digest_of_image(Path(s.path)) for s in ran.of(SampleReady)],
    }


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """One hash of all values, whatever the tensors are called."""
    each = sorted(sha256(t.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest() for t in tensors.values())
    return sha256("".join(each).encode()).hexdigest()


def _digest_of_image(file: Path) -> str:
    with Image.open(file) as image:
        return sha256(image.convert("RGB").tobytes()).hexdigest()


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", RUNS)
def test_losses_are_the_golden_ones(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    golden = RUNS[name]
    stored = json.loads((GOLDEN / f"{name}.json").read_text())
    numbers = numbers_of(golden, request.getfixturevalue(golden.model), tmp_path)
    assert len(numbers["loss"]) == golden.num_steps
    if os.environ.get(EXACT) == "1":
        assert numbers == stored
        return
    assert numbers.keys() == stored.keys()
    for key in (key for key in stored if not key.startswith("digest")):
        rel = golden.gradient_rel if key == "gradient_norm" else golden.loss_rel
        assert [v is None for v in numbers[key]] == [v is None for v in stored[key]], key
        ours, theirs = ([v for v in values[key] if v is not None] for values in (numbers, stored))
        assert ours == pytest.approx(theirs, rel=rel), key


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, golden in RUNS.items():
        with tempfile.TemporaryDirectory() as place:
            numbers = numbers_of(golden, WRITERS[golden.model](Path(place) / "model"), Path(place))
        (GOLDEN / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n")
