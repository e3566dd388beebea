"""`check`: the same problems as in the window, as text and as JSON."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import encode, save_file
from modules.config.schema import Config
from tests.builders.images import draw_folder
from tests.unit.preflight.setups import changed
from trainer.__main__ import main
from trainer.preflight import check
from trainer.run_folder.backup import write_backup


@pytest.fixture
def file(config: Config, tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    save_file(config, path)
    return path


def as_data(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main(["check", "--json", *arguments])
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_it_finds_what_the_window_finds(config: Config, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = changed(config, data__bucket_step_px=12, concepts__0__path="nowhere", general__train_device="gpu")
    save_file(broken, file)
    assert main(["check", str(file)]) == 2
    capsys.readouterr()
    data = as_data(capsys, str(file))
    assert data["problems"] == [p.to_json() for p in check(broken).problems]
    assert {p["path"] for p in data["problems"]} >= {"data.bucket_step_px", "concepts.0.path", "general.train_device"}


def test_the_remedies_are_printed_as_commands(
    config: Config, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = draw_folder(tmp_path / "bare", sizes=[(64, 64)] * 2)
    (images / "000.txt").unlink()
    save_file(changed(config, model__base_model="nowhere.safetensors", concepts__0__path=str(images)), file)
    assert main(["check", str(file)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Choose the base model: python -m trainer models") for line in lines)
    assert any(line.startswith("Write captions: python -m trainer caption FOLDER") for line in lines)


def test_what_happened_to_the_values_of_a_file_is_in_the_json(
    config: Config, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = encode(config)
    tree["training"] |= {"epochs": "many", "charm": 3}
    file.write_text(json.dumps(tree))
    data = as_data(capsys, str(file))
    assert {p["path"]: p["kind"] for p in data["load"]} == {"training.epochs": "replaced", "training.charm": "kept"}
    assert data["was_migrated"] is False
    file.write_text(json.dumps({"__version": 10, "training_method": "LORA", "epochs": 3}))
    data = as_data(capsys, str(file))
    assert data["was_migrated"] is True
    assert "migrated" in {p["kind"] for p in data["load"]}


def test_whether_a_run_can_be_resumed(
    config: Config, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_backup(
        tmp_path / "workspace" / "runs" / "one", step=3, epoch=1, now=datetime(2026, 1, 1),
        write=lambda folder: save_file(config, folder / "config.json"),
    )  # fmt: skip
    workspace = str(tmp_path / "workspace")
    assert as_data(capsys, str(file), "--resume", workspace)["problems"] == []
    data = as_data(capsys, str(file), "--resume", workspace, "--set", "general.seed=7")
    assert [p["path"] for p in data["problems"]] == ["general.seed"]
