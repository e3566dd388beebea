"""What TensorBoard itself reads back of a run."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import IMAGES, SCALARS, EventAccumulator

from modules.config.schema import Config
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import Ran, run
from trainer.events import RewardMeasured, SampleReady, StepFinished, ValidationFinished


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    sample = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 1.0}
    return laid_over(
        small_config(tmp_path, model=tiny_sd, images=images),
        {
            "general": {"tensorboard": True},
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation", "name": "seen"}],
            "training": {"epochs": 1},
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 2},
            "sampling": {"at_start": True, "at_end": True, "prompts": [sample]},
        },
    )


def read(ran: Ran) -> EventAccumulator:
    run_dir = Path(ran.finished.backup_path).parents[1]
    return EventAccumulator(str(run_dir / "tensorboard"), size_guidance={SCALARS: 0, IMAGES: 0}).Reload()


def test_numbers_and_samples_are_there(config: Config) -> None:
    ran = run(config)
    log, steps = read(ran), ran.of(StepFinished)
    for tag, reported in (
        ("loss/train_step", [s.loss for s in steps]),
        ("smooth_loss/train_step", [s.smoothed_loss for s in steps]),
        ("gradient_norm", [s.gradient_norm for s in steps]),
        ("gradient_norm/unet", [s.gradient_norms["unet"] for s in steps]),
        ("lr/unet", [s.learning_rates["unet"] for s in steps]),
    ):
        kept = log.Scalars(tag)
        assert [k.step for k in kept] == [s.step for s in steps]
        np.testing.assert_allclose([k.value for k in kept], reported, rtol=1e-6)
    validations = ran.of(ValidationFinished)
    assert len(validations) > 0
    np.testing.assert_allclose([k.value for k in log.Scalars("loss/validation")], [v.loss for v in validations], 1e-6)
    tags = {
        "loss/validation_weighted": [v.weighted_loss for v in validations],
        "loss/validation/seen": [v.by_concept["seen"] for v in validations],
        "loss/validation_at_timestep/250": [v.by_timestep["250"] for v in validations],
        "loss/validation_at_timestep/750": [v.by_timestep["750"] for v in validations],
    }
    for tag, reported in tags.items():
        np.testing.assert_allclose([k.value for k in log.Scalars(tag)], reported, 1e-6)
    sampled = ran.of(SampleReady)
    (tag,) = log.Tags()["images"]
    assert tag == f"samples/{Path(sampled[0].path).parent.name}"
    for kept, sample in zip(log.Images(tag), sampled, strict=True):
        assert kept.step == sample.step
        with Image.open(BytesIO(kept.encoded_image_string)) as seen, Image.open(sample.path) as file:
            np.testing.assert_array_equal(np.asarray(seen), np.asarray(file))


@pytest.mark.full
def test_a_resumed_run_continues_in_the_same_charts(config: Config) -> None:
    first = run(config)
    longer = laid_over(config, {"training": {"epochs": 2}})
    second = run(longer, resume_from=Path(first.finished.backup_path))
    reported = [s.step for s in (*first.of(StepFinished), *second.of(StepFinished))]
    assert [k.step for k in read(second).Scalars("loss/train_step")] == reported == list(range(1, len(reported) + 1))


@pytest.mark.full
def test_the_reward_is_there_as_followed_and_as_measured(config: Config) -> None:
    ran = run(
        laid_over(
            config,
            {
                "training": {
                    "method": {"name": "alignprop", "steps": 2, "backprop_steps": 1, "held_out_reward": "contrast"}
                },
                "reward": {"models": [{"kind": "brightness"}], "measure_every": {"n": 1, "unit": "epoch"}},
            },
        )
    )
    log, steps, measured = read(ran), ran.of(StepFinished), ran.of(RewardMeasured)
    assert len(measured) == 2
    for tag, reported in (
        ("reward/train_step", [s.metrics["reward"] for s in steps]),
        ("reward/brightness/train_step", [s.metrics["reward/brightness"] for s in steps]),
        ("reward/measured/followed", [m.followed for m in measured]),
        ("reward/measured/held_out", [m.held_out for m in measured]),
        ("reward/measured/contrast", [m.by_reward_model["contrast"] for m in measured]),
    ):
        assert [s.value for s in log.Scalars(tag)] == pytest.approx(reported), tag
