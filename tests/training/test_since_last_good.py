"""What changed since the last good run: named when a run fails, and by `diff`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.system.versions import versions_here
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_image
from tests.builders.runs import run
from trainer.__main__ import main
from trainer.callbacks.pace import EarlierPace
from trainer.events import RunFailed, WarningRaised
from trainer.machine_events import PaceMeasured
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepLoss
from trainer.run import recipe as recipes
from trainer.run import training_run
from trainer.run.recipe import earlier_pace
from trainer.run_folder.recipe import RECIPE_FILE
from trainer.run_folder.records import read_record, run_dirs
from trainer.run_folder.since_last_good import last_good_run
from trainer.step.fixed_losses import FixedLosses
from ui.features.runs.model import changes_line


def test_a_run_that_fails_names_what_changed_since_the_last_good_one(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=images)
    good = run(config)
    assert not [w for w in good.of(WarningRaised) if "last finished run" in w.message]
    [pace] = good.of(PaceMeasured)
    assert pace.num_steps == 6
    assert pace.process_peak > 10**8

    def failing(*_arguments: Any) -> StepLoss:
        raise RuntimeError("planted")

    monkeypatch.setattr(Denoise, "loss", failing)
    changed = laid_over(config, {"training": {"learning_rate": 0.5}, "sampling": {"at_start": True}})
    for each, sentence in (
        (config, "Nothing that is recorded has changed since the last finished run, {}: settings,"),
        (
            changed,
            "Changed since the last finished run, {}: Learning rate is 0.5 (was 0.001); Sample at start is true (was ",
        ),
    ):
        failed = run(each)
        assert isinstance(failed.ending, RunFailed)
        [message] = [w.message for w in failed.of(WarningRaised) if "last finished run" in w.message]
        last, *_, first = run_dirs(tmp_path / "workspace")
        assert message.startswith(sentence.format(first.name))
    (first / RECIPE_FILE).rename(tmp_path / RECIPE_FILE)
    monkeypatch.setattr(FixedLosses, "of", failing)
    assert isinstance(run(config, resume_from=first, kind="report").ending, RunFailed)
    assert not (first / RECIPE_FILE).exists(), "a report leaves the folder as it is"
    (tmp_path / RECIPE_FILE).rename(first / RECIPE_FILE)
    assert main(["diff", str(last)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{last.name} compared with {first.name}:\n")
    assert "setting  Learning rate is 0.5 (was 0.001)\n" in shown
    assert "Likely the cause: Learning rate is 0.5" in message
    assert main(["diff", str(last), str(first), "--json"]) == 0
    [_, rate] = json.loads(capsys.readouterr().out)["differences"]
    assert rate == {"topic": "setting", "text": "Learning rate is 0.5 (was 0.001)", "path": "training.learning_rate"}
    assert main(["diff", str(first)]) == 2
    assert "No earlier run in the workspace" in capsys.readouterr().err
    assert main(["diff", str(last), "#demo"]) == 0
    assert "training.learning_rate = 0.5" in capsys.readouterr().out


def plant_version(_images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "versions_here", lambda: {**versions_here(), "torch": "9.9.0"})


def plant_driver(_images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = recipes.machine_facts
    monkeypatch.setattr(recipes, "machine_facts", lambda *known: replace(facts(*known), driver="600.1"))


def plant_caption(images: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    (images / "001.txt").write_text("another caption")


def plant_image(images: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    draw_image(64, 64, 77).save(images / "000.png")


def plant_missing_image(images: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    (images / "002.png").unlink()


PLANTED: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], None], str, str]] = {
    "version": (plant_version, "version", f"torch is 9.9.0 (was {versions_here()['torch']})"),
    "driver": (plant_driver, "machine", "the driver is 600.1 (was unknown)"),
    "caption": (plant_caption, "images", "1 caption of images is changed (001.png)"),
    "image": (plant_image, "images", "1 image of images is changed (000.png)"),
    "missing image": (plant_missing_image, "images", "1 image of images is missing (002.png)"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_difference_is_named_by_the_run_by_diff_and_by_the_window(
    case: str,
    tiny_sd: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant, topic, text = PLANTED[case]
    own = shutil.copytree(images, tmp_path / "images")
    config = small_config(tmp_path, model=tiny_sd, images=own, training={"epochs": 1})
    run(config)
    plant(own, monkeypatch)

    def failing(*_arguments: Any) -> StepLoss:
        raise RuntimeError("planted")

    monkeypatch.setattr(Denoise, "loss", failing)
    failed = run(config)
    last, first = run_dirs(tmp_path / "workspace")
    [message] = [w.message for w in failed.of(WarningRaised) if "last finished run" in w.message]
    assert message == f"Changed since the last finished run, {first.name}: {text}."
    assert changes_line(read_record(last)) == message
    assert main(["diff", str(last), "--json"]) == 0
    [difference] = json.loads(capsys.readouterr().out)["differences"]
    assert (difference["topic"], difference["text"]) == (topic, text)


def test_the_pace_of_the_last_good_run_counts_if_its_steps_are_the_same(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a resumed run that fails before it is set up is compared by its new settings."""
    config = small_config(tmp_path, model=tiny_sd, images=images, training={"epochs": 1})
    for settings in ({}, {"general": {"seed": 3}}, {"training": {"batch_size": 1}}):
        run(laid_over(config, settings))
    third, second, first = run_dirs(tmp_path / "workspace")
    assert last_good_run(first) is None
    good = last_good_run(second)
    assert good == read_record(first)
    assert earlier_pace(second) is None, "of three steps"
    events = first / "events.jsonl"
    events.write_text(events.read_text().replace('"num_steps": 3,', '"num_steps": 30,'))
    assert good is not None
    assert good.pace is not None
    found = earlier_pace(second)
    assert isinstance(found, EarlierPace)
    assert (found.name, found.step_seconds) == (first.name, good.pace.step_seconds)
    assert found.changes == "Nothing that is recorded has changed since.", "the seed changes no step"
    assert earlier_pace(third) is None, "another batch size"
    events.write_text(re.sub('"step_seconds": [^,]+', '"step_seconds": 0', events.read_text()))
    assert earlier_pace(second) is None, "nothing is so many times as slow as a step in no time"

    monkeypatch.delattr(training_run, "load_run")
    longer = laid_over(config, {"general": {"seed": 3}, "training": {"epochs": 2, "learning_rate": 0.5}})
    failed = run(longer, resume_from=second)
    [message] = [w.message for w in failed.of(WarningRaised) if "last finished run" in w.message]
    assert "Learning rate is 0.5 (was 0.001)" in message
