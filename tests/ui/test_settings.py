"""The last session: complete, partial and broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config.schema import Config
from ui.app.session_files import load_session, save_session
from ui.forms.model import FormModel, Source
from ui.forms.preferences import Preferences, UiSettings
from ui.widgets.window import fitting_geometry


def test_a_session_is_restored(tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    form = FormModel(Config(), source=Source("#demo", tmp_path / "#demo.json", "built_in"))
    form.edit_text("training.epochs", "3")
    settings = UiSettings(page="model", show_advanced=True, appearance="light", geometry="1x1+0+0")
    save_session(file, form.document, settings)
    session = load_session(file)
    assert session.form is not None
    assert (session.form.config, session.form.baseline) == (form.config, form.baseline)
    assert session.form.source == form.source
    assert session.form.is_changed
    assert session.settings == settings
    assert session.problems == ()


def test_without_a_file_the_defaults_open(tmp_path: Path) -> None:
    session = load_session(tmp_path / "session.json")
    assert (session.form, session.settings, session.problems) == (None, UiSettings(), ())


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"config": 3}', "\udcff", "[" * 100_000])
def test_a_broken_file_is_moved_aside_and_reported(tmp_path: Path, content: str) -> None:
    file = tmp_path / "session.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    session = load_session(file)
    assert session.form is None
    assert "could not be read" in session.problems[0].message
    assert not file.exists()
    (kept,) = tmp_path.glob("session-*.json.bad")
    assert kept.read_bytes() == content.encode("utf-8", "surrogateescape")
    assert str(kept) in session.problems[0].message


def test_a_truncated_session_is_moved_aside(tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    form = FormModel(Config(), source=Source("#demo", tmp_path / "#demo.json", "built_in"))
    save_session(file, form.document, UiSettings(page="model"))
    whole = file.read_bytes()
    folder = tmp_path / "cut"
    folder.mkdir()
    for length in {*range(64), *range(64, len(whole.rstrip()), 7), len(whole.rstrip()) - 1}:
        (folder / "session.json").write_bytes(whole[:length])
        session = load_session(folder / "session.json")
        assert (session.form, session.settings, len(session.problems)) == (None, UiSettings(), 1), length
        (kept,) = folder.iterdir()
        assert kept.suffix == ".bad"
        kept.unlink()


def test_a_folder_at_the_sessions_path_is_moved_aside(tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    (file / "inside").mkdir(parents=True)
    session = load_session(file)
    assert session.form is None
    (kept,) = tmp_path.glob("session-*.json.bad")
    assert (kept / "inside").is_dir()
    save_session(file, FormModel().document, UiSettings())
    assert load_session(file).problems == ()


def test_a_session_without_permission_is_reported_and_the_defaults_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "session.json"
    file.write_text("{}")

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(Path, "rename", refuse)
    session = load_session(file)
    assert (session.form, session.settings) == (None, UiSettings())
    assert "Permission denied" in session.problems[0].message
    assert "could not be moved aside" in session.problems[0].message
    assert file.exists()


def test_several_in_a_second_are_all_kept(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "session.json").write_text(f"broken {number}")
        assert "was kept as" in load_session(tmp_path / "session.json").problems[0].message
    kept = sorted(f.read_text() for f in tmp_path.glob("*.bad"))
    assert kept == ["broken 0", "broken 1", "broken 2"]


def test_invalid_settings_get_defaults_and_unknown_ones_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    ui = {"page": "model", "scale_percent": "huge", "appearance": "pink", "from_the_future": 1}
    file.write_text(json.dumps({"config": {"darkroom_version": 7}, "ui": ui}), encoding="utf-8")
    settings = load_session(file).settings
    assert (settings.page, settings.scale_percent, settings.appearance) == ("model", 0, "dark")
    save_session(file, FormModel().document, settings)
    assert json.loads(file.read_text(encoding="utf-8"))["ui"]["from_the_future"] == 1


def test_problems_of_the_config_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    file.write_text(json.dumps({"config": {"darkroom_version": 7, "training": {"epochs": -1}}}), encoding="utf-8")
    session = load_session(file)
    assert session.form is not None
    assert session.problems[0].path == "training.epochs"


def test_a_failed_write_of_the_session_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    save_session(tmp_path / "file" / "session.json", FormModel().document, UiSettings())


def test_recent_files_are_few_and_the_newest_comes_first() -> None:
    settings = UiSettings()
    for n in range(20):
        settings = settings.with_recent(Path(f"/{n}.json"))
    settings = settings.with_recent(Path("/15.json"))
    assert len(settings.recent) == 8
    assert settings.recent[:2] == (str(Path("/15.json")), str(Path("/19.json")))


def test_preferences_signal_only_changes() -> None:
    preferences, reported = Preferences(UiSettings()), []
    preferences.changed.subscribe(lambda: reported.append(1))
    preferences.change(show_advanced=True)
    preferences.change(show_advanced=True)
    assert reported == [1]


@pytest.mark.parametrize(
    ("geometry", "is_kept"),
    [
        ("1100x740+10+20", True),
        ("", False),
        ("nonsense", False),
        ("1100x740+5000+20", False),
        ("1100x740+-2000+20", False),
        ("9000x740+0+0", False),
    ],
)
def test_a_window_is_never_placed_off_the_screen(geometry: str, is_kept: bool) -> None:
    assert bool(fitting_geometry(geometry, (1920, 1080))) is is_kept
