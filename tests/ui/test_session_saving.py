"""Edits outlive a killed window."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from modules.system.paths import PROGRAM_ROOT, session_file
from tests.ui.conftest import Window
from ui.app.session_files import load_session
from ui.app.session_saving import SessionSaver
from ui.forms.model import FormModel
from ui.forms.preferences import UiSettings
from ui.loop.pump import Pump

# A window in a process of its own that edits, turns its pump, and is killed.
_KILLED = """
import os, signal, time
import ui.app.session_saving
from ui.app.window import App
ui.app.session_saving.QUIET_SECONDS = 0.0
app = App()
app.form.edit_text("training.epochs", "77")
end = time.monotonic() + 120
while not app.session_saver._writes.last_written and time.monotonic() < end:
    app.context.pump.tick()
assert app.session_saver._writes.last_written
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_edit_outlives_a_killed_window(open_window: Callable[..., Window]) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], cwd=PROGRAM_ROOT, env=os.environ, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    window = open_window()
    assert window.app.form.config.training.epochs == 77
    assert window.app.form.is_changed
    assert session_file().is_file()


def test_only_edits_are_saved_and_an_older_state_never_replaces_a_newer_one(tmp_path: Path) -> None:
    form, pump = FormModel(), Pump(lambda _ms, _turn: None)
    saver = SessionSaver(tmp_path / "session.json", form, pump, UiSettings)
    saver.follow_edits()
    form.changed()  # nothing was edited
    assert pump.is_idle
    form.edit("training.epochs", 5)
    assert not pump.is_idle
    older = saver._writer()
    form.edit("training.epochs", 6)
    saver.save_now()
    older()  # its thread was slow
    session = load_session(tmp_path / "session.json")
    assert session.form is not None
    assert session.form.config.training.epochs == 6
    form.edit("training.epochs", 7)
    next(iter(pump._redraws.values())).not_before = 0.0
    while not pump.is_idle:
        pump.tick()
    meeting = threading.Barrier(3)
    for _ in range(2):  # both threads are through with what was submitted before
        pump.lasting.run(meeting.wait, lambda _done: None)
    meeting.wait(120)
    session = load_session(tmp_path / "session.json")
    assert session.form is not None
    assert session.form.config.training.epochs == 7
