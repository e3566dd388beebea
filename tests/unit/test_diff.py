"""diff: which settings differ, from another config or from the defaults, for people and as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config.codec import save_file
from modules.config.presets import list_presets
from modules.config.schema import Config
from modules.settings.edit import set_path
from trainer.__main__ import main
from trainer.jobs.config import read_config
from trainer.jobs.diff import ABSENT, differences
from trainer.run_folder.event_log import EVENTS_FILE


def test_a_config_differs_from_itself_in_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert differences(Config(), Config()) == []
    assert main(["diff", "#demo", "#demo"]) == 0
    assert capsys.readouterr().out == "No setting differs from #demo.\n"


def test_each_difference_has_both_values() -> None:
    config, _ = set_path(Config(), "training.epochs", 3)
    config, _ = set_path(config, "training.optimizer", "adafactor")
    rows = {path: (value, before) for path, value, before in differences(config, Config())}
    assert rows["training.epochs"] == (3, 10)
    assert rows["training.optimizer.name"] == ("adafactor", "adamw")
    assert rows["training.optimizer.beta2"] == (ABSENT, 0.999)


def test_a_missing_part_has_its_defaults() -> None:
    """Every field of such a part used to differ, with the same value on both sides."""
    config, _ = set_path(Config(), "parts.unet.train", False)
    assert differences(config, Config()) == [("parts.unet.train", False, True)]
    assert differences(Config.model_validate({"parts": {"unet": {}}}), Config()) == []


def test_a_folder_is_not_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder, not a config file." in capsys.readouterr().err


def test_kept_settings_of_other_programs_are_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """They hid the others: a config of OneTrainer has more than a hundred."""
    path = tmp_path / "a.json"
    save_file(Config.model_validate({"unknown": {"onetrainer": {"frames": "25", "prior": {"train": True}}}}), path)
    assert main(["diff", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "No setting differs from the defaults.",
        "Also 2 kept settings of other programs, with no effect (--json).",
    ]


def test_a_config_is_compared_with_that_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the help has it; the folder of the run was refused."""
    save_file(Config(), tmp_path / "config.json")
    (tmp_path / EVENTS_FILE).touch()
    assert main(["diff", "#demo", str(tmp_path), "--json"]) == 0
    assert {"path": "training.epochs", "value": 30, "other": 10} in json.loads(capsys.readouterr().out)


def test_a_change_on_the_command_line_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "#demo", "#demo", "--set", "training.epochs=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"path": "training.epochs", "value": 3, "other": 30}]


def test_the_layers_are_defaults_preset_config_and_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"darkroom_version": 7, "training": {"batch_size": 5}, "general": {"seed": 3}}')
    loaded = read_config(str(file), ["general.seed=4"], preset="#demo")
    demo = read_config("#demo", []).config
    assert loaded.config.training.epochs == demo.training.epochs != Config().training.epochs
    assert (loaded.config.training.batch_size, loaded.config.general.seed) == (5, 4)
    assert loaded.config.concepts == demo.concepts
    assert main(["diff", str(file), "#demo", "--preset", "demo", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in rows] == ["general.seed", "training.batch_size"]


def test_a_preset_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "#demo", "--preset", "#none"]) == 2
    names = ", ".join(preset.name for preset in list_presets())
    assert f"There is no preset '#none'. Presets are: {names}" in capsys.readouterr().err.replace("\n", " ")


def test_a_misspelt_preset_is_guessed_and_a_missing_file_lists_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "#dem"]) == 2
    assert "and no preset '#dem'. Did you mean #demo?" in capsys.readouterr().err.replace("\n", " ")
    assert main(["check", "no_such_file.json"]) == 2
    error = capsys.readouterr().err
    assert "no_such_file.json" in error
    assert "Check the path" in error
    assert "Presets are" not in error
