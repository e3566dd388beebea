"""The passes of an optimizer step, by method, and the remaining time that depends on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.config.usage import step_passes
from modules.estimate.step_passes import StepPasses
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from trainer.callbacks.reports import Metrics
from trainer.events import Event, StepFinished
from trainer.preflight import check
from trainer.preflight.checks import describe_passes
from trainer.step.callback import StepView
from trainer.step.counters import Counters
from trainer.step.outcome import StepOutcome

BATCH = {"batch_size": 2, "accumulation_steps": 4}  # 8 samples


def config_of(folder: Path, method: dict[str, Any], **changes: Any) -> Config:
    config = small_config(folder, model=folder, images=folder, training={**BATCH, "method": method})
    return laid_over(config, changes)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ({"name": "denoise"}, (0, 8, 0)),
        ({"name": "dpo"}, (16, 16, 0)),
        ({"name": "dpo", "loss": "mapo"}, (0, 16, 0)),
        ({"name": "alignprop", "steps": 10, "backprop_steps": 3, "guidance": 5.0}, (8 * 2 * 7, 8 * 2 * 3, 8)),
        ({"name": "alignprop", "steps": 10, "backprop_steps": 3, "guidance": 1.0}, (8 * 7, 8 * 3, 8)),
        (
            {"name": "alignprop", "steps": 10, "backprop_steps": 3, "guidance": 1.0, "probability": 0.25},
            (0.25 * 8 * 7, 0.25 * 8 * 3 + 0.75 * 8, 2),
        ),
        (
            {"name": "alignprop", "steps": 10, "gradient_truncation": "direct", "guidance": 5.0},
            (8 * 2 * 9, 8 * 2, 8),
        ),
        (
            {"name": "alignprop", "steps": 10, "gradient_truncation": "direct", "clean_images": "own", "guidance": 5.0},
            (0, 8 * 2, 0),
        ),
        (
            {"name": "ddpo", "steps": 11, "samples_per_prompt": 4, "guidance": 5.0, "timestep_share": 0.5},
            (32 * 11 * 2, 32 * 5 * 2, 32),
        ),
        (
            {"name": "ddpo", "steps": 11, "samples_per_prompt": 4, "guidance": 1.0, "inner_epochs": 2},
            (32 * 11 / 2, 32 * 10, 16),
        ),
        (
            {"name": "online_dpo", "steps": 10, "candidates": 6, "guidance": 5.0, "updates_per_rollout": 4},
            (48 * 10 * 2 / 4 + 16, 16, 12),
        ),
        (
            {"name": "online_dpo", "steps": 10, "candidates": 6, "guidance": 5.0, "updates_per_rollout": 4,
             "reference": "refreshed"},
            (48 * 10 * 2 / 4 + 16, 16, 12),
        ),
        (
            {"name": "nft", "steps": 10, "group_size": 6, "timesteps_per_image": 3, "updates_per_rollout": 2},
            (48 * 10 / 2 + 2 * 48 * 3, 48 * 3, 24),
        ),
        (
            {"name": "nft", "steps": 10, "group_size": 6, "timesteps_per_image": 3, "guidance": 5.0, "kl_weight": 0.0},
            (48 * 10 * 2 + 48 * 3, 48 * 3, 48),
        ),
        (
            {"name": "dgpo", "steps": 10, "group_size": 6, "timesteps_per_image": 3},
            (48 * 10 * 2 + 3 * 48 * 3, 48 * 3, 48),
        ),
        (
            {"name": "dgpo", "steps": 10, "group_size": 6, "timesteps_per_image": 3, "guidance": 1.0,
             "reference": "sampling", "kl_weight": 0.0},
            (48 * 10 + 2 * 48 * 3, 48 * 3, 48),
        ),
        (
            {"name": "grpo", "steps": 11, "group_size": 6, "best_of": 4, "guidance": 1.0, "kl_weight": 0.1,
             "timestep_share": 0.5},
            (48 * 11 + 32 * 5, 32 * 5, 48),
        ),
        (
            {"name": "grpo", "steps": 11, "group_size": 6, "guidance": 5.0, "kl_weight": 0.0, "timesteps": "window",
             "window_size": 3},
            (48 * 11 * 2, 48 * 3 * 2, 48),
        ),
    ],
)  # fmt: skip
def test_the_passes_of_a_step(tmp_path: Path, method: dict[str, Any], expected: tuple[float, float, float]) -> None:
    passes = step_passes(config_of(tmp_path, method))
    assert (passes.without_gradient, passes.with_gradient, passes.num_sampled) == pytest.approx(expected)


def test_a_backward_pass_counts_twice_and_checkpointing_repeats_the_forward_pass(tmp_path: Path) -> None:
    assert StepPasses(4, 2).cost == 4 + 2 * 3
    assert StepPasses(4, 2, repeats_forward=True).cost == 4 + 2 * 4
    assert StepPasses(6, 2).times_denoising(2) == 2
    block = {"parts": {"unet": {"checkpointing": "block"}}}
    assert not step_passes(config_of(tmp_path, {"name": "denoise"})).repeats_forward
    assert step_passes(config_of(tmp_path, {"name": "denoise"}, **block)).repeats_forward


def test_the_check_says_what_a_step_costs(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 8, captions=["a disc"])
    method = {"name": "ddpo", "steps": 5, "samples_per_prompt": 2, "guidance": 5.0}
    config = laid_over(
        config_of(tmp_path, method, reward={"models": [{"kind": "brightness"}]}),
        {"concepts": [{"path": str(images)}], "model": {"base_model": str(tiny_sd)}},
    )
    report = check(config)
    assert report.preview is not None, report.problems
    assert report.preview.passes == (
        "A step samples 16 images and passes 160 images through the UNet without gradient and 128 with it, which takes "
        "about 23 times as long as a step of the method Denoising."
    )
    assert describe_passes(config_of(tmp_path, {"name": "denoise"})) == ""


# -- the remaining time


def reported(seconds: list[float], *, steps_per_group: int = 1) -> list[StepFinished]:
    found: list[Event] = []
    metrics = Metrics(emit=found.append, epochs=1, total_steps=100, log=None, steps_per_group=steps_per_group)
    for step, duration in enumerate(seconds):
        outcome = StepOutcome(0.5, 1.0, 4, False, {})
        metrics.after_step(StepView(Counters(step=step), Counters(step=step + 1), outcome, duration, 100, ()))
    return [e for e in found if isinstance(e, StepFinished)]


def test_the_remaining_time_counts_a_rollout_once_for_the_steps_that_train_on_it() -> None:
    """The first of three steps also samples: 10 s, then 1 s and 1 s."""
    left = [event.seconds_left for event in reported([10, 1, 1] * 4, steps_per_group=3)]
    assert left[2:] == pytest.approx([4.0 * (100 - n) for n in range(3, 13)])


def test_a_first_step_that_compiles_does_not_stretch_the_remaining_time() -> None:
    """After 20 steps of a second, one of a minute still made it eight times as long."""
    left = [event.seconds_left for event in reported([60] + [1] * 20)]
    assert left == pytest.approx([60 * 99, *(100 - n for n in range(2, 22))])


def test_images_per_second_are_those_of_the_time_that_passed() -> None:
    """Of steps of 1 and of 9 s with 4 images each: 0.8 a second, where the mean of both speeds is 2.2."""
    speeds = [event.images_per_second for event in reported([1, 9] * 40)]
    assert speeds[-1] == pytest.approx(0.8, rel=0.1)
