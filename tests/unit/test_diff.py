"""diff: which settings differ, from another config or from the defaults, for people and as data."""

from __future__ import annotations

import json

import pytest

from modules.config.edit import set_path
from modules.config.schema import Config
from trainer.__main__ import main
from trainer.cli.diff import differences


def test_a_config_differs_from_itself_in_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert differences(Config(), Config()) == []
    assert main(["diff", "#demo", "#demo"]) == 0
    assert capsys.readouterr().out == "No setting differs from #demo.\n"


def test_each_difference_has_both_values() -> None:
    config, _ = set_path(Config(), "training.epochs", 3)
    config, _ = set_path(config, "training.optimizer", "adafactor")
    rows = {path: (value, before) for path, value, before in differences(config, Config())}
    assert rows["training.epochs"] == ("3", "10")
    assert rows["training.optimizer.name"] == ('"adafactor"', '"adamw"')
    assert rows["training.optimizer.beta1"][1] == "0.9"


def test_a_change_on_the_command_line_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "#demo", "#demo", "--set", "training.epochs=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"path": "training.epochs", "value": "3", "other": "30"}]
