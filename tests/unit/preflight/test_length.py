"""Settings that do not fit the length of the run: batches, warm-up, parts that stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.rewards.user_code_file import hash_of
from tests.builders.images import draw_folder
from tests.unit.preflight.setups import changed, reported
from trainer.preflight import check

# The five images of the fixture, three of one size and two of another, give 3 steps per epoch and 6 in total.

STEP = {"n": 1, "unit": "step"}


@pytest.mark.parametrize(
    ("changes", "path", "severity"),
    [
        ({"training__batch_size": 3}, "training.batch_size", "info"),
        ({"training__batch_size": 4}, "training.batch_size", "warning"),
        ({"training__accumulation_steps": 4}, "training.accumulation_steps", "warning"),
        ({"training__schedule": {"name": "linear", "warmup_steps": 6}}, "training.schedule", "warning"),
        ({"parts__unet__stop_after": {"n": 6, "unit": "step"}}, "parts.unet.stop_after", "info"),
    ],
)
def test_what_does_not_fit(config: Config, changes: dict[str, Any], path: str, severity: str) -> None:
    assert reported(check(changed(config, **changes))) == [(path, severity)]


@pytest.mark.parametrize(
    "changes",
    [
        {"training__batch_size": 2},
        {"training__batch_size": 4, "concepts__0__repeats": 2.0},
        {"training__accumulation_steps": 3},
        {"training__schedule": {"name": "linear", "warmup_steps": 5}},
        {"parts__unet__stop_after": {"n": 5, "unit": "step"}},
        {"parts__unet__stop_after": {"n": 1, "unit": "epoch"}},
        {"parts__unet__stop_after": {"n": 5, "unit": "hour"}, "parts__text_encoder__stop_after": STEP},
        {"training__ema__mode": "train_device", "training__ema__update_every_steps": 6},
    ],
    ids=str,
)  # fmt: skip
def test_what_fits(config: Config, changes: dict[str, Any]) -> None:
    assert reported(check(changed(config, **changes))) == []


def test_the_warning_states_that_no_image_is_dropped(config: Config) -> None:
    [problem] = check(changed(config, training__batch_size=64)).problems
    assert problem.message.startswith("Every size of image has fewer images in an epoch than the batch of 64.")
    assert "No image is dropped" in problem.message
    [problem] = check(changed(config, training__batch_size=3)).problems
    assert problem.message.startswith("1 of 2 sizes of image has fewer images in an epoch than the batch of 3.")
    preview = check(changed(config, training__batch_size=64)).preview
    assert preview is not None
    assert preview.steps_first_epoch == 2


@pytest.mark.parametrize(
    ("unet", "text_encoder", "named"),
    [
        ({"n": 1, "unit": "epoch"}, {"n": 1, "unit": "epoch"}, "parts.unet.stop_after"),
        ({"n": 1, "unit": "epoch"}, {"n": 5, "unit": "step"}, "parts.text_encoder.stop_after"),
        ({"n": 4, "unit": "step"}, {"n": 1, "unit": "epoch"}, "parts.unet.stop_after"),
        ({"n": 4, "unit": "step"}, {"n": 2, "unit": "step"}, "parts.unet.stop_after"),
    ],
)
def test_all_parts_stop_before_the_run_ends(
    config: Config, unet: dict[str, Any], text_encoder: dict[str, Any], named: str
) -> None:
    both = changed(config, parts__unet__stop_after=unet, parts__text_encoder__stop_after=text_encoder)
    [problem] = check(both).problems
    assert (problem.path, problem.severity) == (named, "warning")
    assert problem.message.startswith("Training of every part stops after")
    one = changed(both, parts__text_encoder__train=False)
    idle, problem = check(one).problems
    assert (idle.path, idle.severity) == ("parts.text_encoder.stop_after", "info")
    assert idle.message == "Stop training after has no effect (needs Train: on)."
    assert problem.path == "parts.unet.stop_after"


def test_sizes_are_counted_over_concepts_and_resolutions(config: Config, tmp_path: Path) -> None:
    more = draw_folder(tmp_path / "more", sizes=[(64, 64)] * 5)
    both = [config.concepts[0].model_dump(), {"path": str(more), "repeats": 2}]
    big = changed(config, concepts=both, training__batch_size=13)
    [problem] = check(big).problems
    assert problem.message.startswith("1 of 2 sizes of image")


@pytest.mark.parametrize(
    ("every", "is_reported"),
    [
        ({"n": 7, "unit": "step"}, True),
        ({"n": 6, "unit": "step"}, False),
        ({"n": 3, "unit": "epoch"}, True),
        ({"n": 1, "unit": "epoch"}, False),
        ({"n": 9, "unit": "hour"}, False),
        ({"n": 1, "unit": "never"}, False),
    ],
)
def test_a_run_that_ends_before_its_reward_is_measured_again(
    config: Config, every: dict[str, Any], is_reported: bool
) -> None:
    """The change of the reward would not be visible, which used to go unreported."""
    followed = changed(config, training__method="alignprop", reward__models=[{"kind": "brightness"}])
    named = reported(check(changed(followed, reward__measure_every=every)))
    assert (("reward.measure_every", "warning") in named) == is_reported


def test_a_run_without_reward_models_measures_nothing(config: Config) -> None:
    """A person chooses, so that none is needed."""
    method = {"name": "online_dpo", "chosen_by": "person"}
    assert "reward.measure_every" not in dict(reported(check(changed(config, training__method=method))))


def test_an_invalid_function_is_reported_once(config: Config) -> None:
    scored = changed(config, training__method="alignprop", reward__models=[{"kind": "user_code", "file": "mine.py"}])
    assert [path for path, _ in reported(check(scored))].count("reward.models.0.file") == 1


def test_an_approved_function_is_reported_once_before_the_start(config: Config, tmp_path: Path) -> None:
    """The window shows the warnings, and below them the preview, which used to repeat it."""
    file = tmp_path / "mine.py"
    file.write_text("def score(images, prompts): ...")
    scorers = [{"kind": "user_code", "file": f"{file}:score"}]
    scored = changed(config, training__method="alignprop", reward__models=scorers)
    report = check(scored, approved_code={hash_of(file)})
    assert ("reward.models.0.file", "warning") in reported(report)
    assert report.preview is not None
    assert report.preview.reward_models == ()


def test_the_advice_fits_a_size_that_all_images_get(config: Config) -> None:
    """There are no buckets, so their step changes nothing."""
    one_size = check(changed(config, training__batch_size=64, data__resolution_px=["128x64"])).problems
    assert [p.advice for p in one_size] == ["Lower the batch size, add images, or raise the repeats."]
    [problem] = check(changed(config, training__batch_size=64)).problems
    assert "raise the bucket step" in problem.advice
