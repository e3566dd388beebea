"""A run on two processes is the run on one: the same images, noise and timesteps in every step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.ranks import OtherProcess, run_on_two
from tests.builders.runs import Ran, run
from trainer.events import StepFinished

# Two sizes and batches of three: micro-batches of odd sizes, accumulation groups that are not full, 20 steps.
SIZES = [(64, 64)] * 7 + [(96, 64)] * 4
BOTH: dict[str, Any] = {
    "training": {
        "epochs": 4,
        "batch_size": 3,
        "accumulation_steps": 1,
        "learning_rate": 3e-3,
        "ema": {"mode": "train_device", "decay": 0.9},
    },
    "parts": {
        "unet": {"stop_after": {"n": 15, "unit": "step"}},
        "text_encoder": {"train": True, "learning_rate": 1e-3},
    },
}


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    process = OtherProcess()
    yield process
    process.close()


@pytest.fixture(scope="module")
def config(tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("ranks")
    images = draw_folder(folder / "images", sizes=SIZES, captions=["a disc", "a red disc, small", "nothing"])
    return small_config(folder, model=tiny_sd, images=images, **BOTH)


def in_folder(config: Config, folder: Path) -> Config:
    general = {"workspace_dir": str(folder / "workspace"), "cache_dir": str(folder / "cache")}
    return laid_over(config, {"general": general, "output": {"destination": str(folder / "out" / "a.safetensors")}})


def differences(one: Ran, two: Ran) -> tuple[float, float]:
    """Return the largest differences of the losses and of the trained weights."""
    losses = [[step.loss for step in ran.of(StepFinished)] for ran in (one, two)]
    assert len(losses[0]) == len(losses[1])
    assert None not in losses[0] and None not in losses[1]
    of_losses = max(abs(a - b) for a, b in zip(*losses, strict=True))
    weights = one.weights, two.weights
    assert weights[0].keys() == weights[1].keys()
    return of_losses, max(float((weights[0][n] - weights[1][n]).abs().max()) for n in weights[0])


CASES = {
    "lora": {},
    "full": {"training": {"trains": "full", "learning_rate": 1e-4}, "parts": {"text_encoder": {"learning_rate": 1e-4}}},
    "accumulation": {"training": {"accumulation_steps": 3}},
    "dropout": {"training": {"accumulation_steps": 2, "batch_size": 2}, "adapter": {"dropout": 0.2}},
    "uncached": {"data": {"latent_cache": False, "text_cache": False}},
    "noise": {
        "training": {
            "noise": {
                "offset_weight": 0.1,
                "offset_random_strength": True,
                "pyramid_iterations": 3,
                "input_perturbation": 0.1,
                "stratification": "antithetic",
            }
        }
    },
}


@pytest.mark.parametrize("case", CASES)
def test_x(other, config, tmp_path, case):
    config = laid_over(config, CASES[case])
    one = run(in_folder(config, tmp_path / "one"))
    two, ending = run_on_two(other, in_folder(config, tmp_path / "two"))
    print(case, two.ending.message, ending, differences(one, two))
