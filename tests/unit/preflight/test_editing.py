"""The checks that are made while the user edits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modules.config.presets import list_presets
from modules.config.schema import Config
from modules.settings.edit import set_path
from trainer.preflight.editing import problems_of_files


def changed(**settings: object) -> Config:
    config = Config()
    for path, value in settings.items():
        config, problems = set_path(config, path.replace("__", "."), value)
        assert not problems
    return config


def paths_of(config: Config) -> list[str]:
    return [problem.path for problem in problems_of_files(config)]


def test_missing_files_and_folders_are_found(tmp_path: Path) -> None:
    assert paths_of(changed(model__base_model=str(tmp_path / "gone.safetensors"))) == ["model.base_model"]
    assert paths_of(changed(parts__vae__file=str(tmp_path / "gone.safetensors"))) == ["parts.vae.file"]
    assert paths_of(changed(adapter__start_from=str(tmp_path / "gone.safetensors"))) == ["adapter.start_from"]
    gone = Config.model_validate({"concepts": [{"path": str(tmp_path / "gone")}, {"path": ""}]})
    assert paths_of(gone) == ["concepts.0.path"]  # the second one is still being added
    assert paths_of(changed(output__destination="")) == ["output.destination"]


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("written")

    config = changed(
        general__workspace_dir=str(tmp_path / "a" / "workspace"),
        general__cache_dir=str(tmp_path / "cache"),
        output__destination=str(tmp_path / "b" / "lora.safetensors"),
    )
    for name in ("write_bytes", "write_text", "mkdir", "touch"):
        monkeypatch.setattr(Path, name, refuse)
    assert problems_of_files(config) == []
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert {p.path for p in problems_of_files(config)} >= {"general.workspace_dir", "output.destination"}


def test_the_files_of_the_built_in_presets_are_no_problem() -> None:
    for preset in list_presets():
        if preset.is_built_in:
            assert problems_of_files(preset.load().config) == [], preset.name
