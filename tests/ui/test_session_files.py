"""Each window has a session of its own, and what a window that is gone has not saved is offered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.system.file_lock import FileLock
from modules.system.paths import session_file
from tests.ui.conftest import Window
from tests.ui.driving import inside
from tests.ui.test_pages import form_of
from ui.app.abandoned_sessions import find_abandoned_sessions
from ui.app.session_files import HeldSession, load_session, lock_of, read_session, save_session, take_session
from ui.forms.model import FormModel, Source
from ui.forms.preferences import UiSettings
from ui.widgets.entry import Entry


def write(file: Path, *, epochs: int = 0, minutes_ago: int = 0, page: str = "home", invalid: str = "") -> FormModel:
    """Write the session of a window that is gone, with an unsaved change unless `epochs` is 0."""
    form = FormModel(Config(), source=Source("mine"))
    if epochs:
        form.edit("training.epochs", epochs)
    if invalid:
        form.edit_text("training.epochs", invalid)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_session(file, form.document, UiSettings(page=page), form.drafts)
    when = file.stat().st_mtime - 60 * minutes_ago
    os.utime(file, (when, when))
    return form


def epochs_of(session: HeldSession) -> int | None:
    form = session.last.form
    return form.config.training.epochs if form is not None else None


def test_each_window_has_a_file_of_its_own_and_the_newest_free_one_is_taken_over(tmp_path: Path) -> None:
    first = tmp_path / "state" / "session.json"
    one = take_session(first)
    assert (one.file, one.last.form) == (first, None)
    form = write(first, epochs=7, page="model")
    two = take_session(first)
    assert two.file.name == "session-2.json"
    assert two.last.settings.page == "model"
    assert epochs_of(two) == form.baseline.training.epochs  # a running window's unsaved work is left alone
    write(two.file, epochs=8)
    one.release()
    two.release()
    again = take_session(first)
    assert (again.file, epochs_of(again)) == (two.file, 8)
    other = take_session(first)
    assert (other.file, epochs_of(other)) == (first, 7)
    other.release()
    again.release()


def test_the_settings_of_the_newest_window_are_taken_over(tmp_path: Path) -> None:
    first, second = tmp_path / "session.json", tmp_path / "session-2.json"
    write(first, page="model")
    write(second, epochs=4, minutes_ago=5, page="data")
    running = FileLock(lock_of(first))
    own = take_session(first)
    assert (own.file, own.last.settings.page, epochs_of(own)) == (second, "model", 4)
    running.release()
    own.release()


def test_the_unsaved_work_of_all_windows_that_are_gone_is_found(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("session.json", *(f"session-{n}.json" for n in range(2, 8)))]
    own, running, newer, older, saved, same, broken = files
    opened = write(own, epochs=2)
    write(running, epochs=3)
    write(newer, epochs=4, minutes_ago=1)
    write(older, invalid="many", minutes_ago=2)
    write(saved)
    save_session(same, opened.document, UiSettings())
    broken.write_text("{")
    moved = tmp_path / "session-20260101-120000.json.bad"
    moved.write_text("{")
    lock = FileLock(lock_of(running))
    found = find_abandoned_sessions(own, own, opened.document)
    assert [gone.file for gone in found] == [newer, older]
    assert [gone.summary for gone in found] == ["mine with 1 unsaved change"] * 2
    assert sorted(f.name for f in tmp_path.glob("*.json*")) == sorted(f.name for f in (*files[:4], broken, moved))
    lock.release()


def test_a_config_that_is_in_no_file_is_unsaved_work(tmp_path: Path) -> None:
    config = Config.model_validate({"training": {"epochs": 9}})
    for number, source in enumerate((Source("Pasted config"), Source("lost", tmp_path / "lost.json", "file")), 2):
        save_session(tmp_path / f"session-{number}.json", FormModel(config, source=source).document, UiSettings())
    own = tmp_path / "session.json"
    assert len(find_abandoned_sessions(own, own, FormModel().document)) == 2


def test_invalid_entries_are_kept_as_text(tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    form = write(file, invalid="many")
    restored = load_session(file).form
    assert restored is not None
    assert restored.drafts == form.drafts
    assert restored.draft("training.epochs") is not None
    assert restored.is_changed


@pytest.mark.parametrize(
    "invalid", [3, [3, {"path": "training.epochs"}], [{"path": "a.b", "text": "", "message": "", "advice": ""}]]
)
def test_invalid_entries_that_mean_nothing_are_left_out(tmp_path: Path, invalid: object) -> None:
    file = tmp_path / "session.json"
    write(file, epochs=3)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"invalid": invalid}))
    assert not read_session(file).drafts


def test_the_work_of_another_window_is_opened_with_its_invalid_entries(open_window: Callable[..., Window]) -> None:
    other = session_file().with_stem("session-2")
    write(session_file(), epochs=5)
    write(other, epochs=6, minutes_ago=3, invalid="many")
    write(third := session_file().with_stem("session-3"), epochs=9, minutes_ago=9)
    window = open_window()
    form, notices = window.app.form, window.app.context.notices
    assert form.config.training.epochs == 5
    window.wait_until(lambda: len(notices.items) == 2, "both offers")
    assert "mine with 2 unsaved changes" in notices.items[0].text
    notices.reply(notices.items[0], notices.items[0].replies[0])
    window.wait_until(lambda: not other.exists(), "the session of both")
    assert (form.config.training.epochs, form.drafts["training.epochs"].text) == (6, "many")
    row = next(row for row in form_of(window, "training").rows() if row.record.path == "training.epochs")
    assert inside(row.control.frame, Entry).tk_entry.get() == "many"
    undo = next(n for n in notices.items if n.key == "replaced")
    notices.reply(undo, undo.replies[0])
    assert form.config.training.epochs == 5
    (left,) = [n for n in notices.items if "another window" in n.text.lower()]
    window.asked.answers["choose"] = "discard"
    notices.reply(left, left.replies[1])
    assert not third.exists()
