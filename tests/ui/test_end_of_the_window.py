"""The end of a window in a process of its own: without its display, and under an open dialog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT


def _run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script whose sessions and logs are in a folder."""
    folders = {f"XDG_{name}_HOME": str(folder / name) for name in ("CONFIG", "STATE", "CACHE", "DATA")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROGRAM_ROOT,
        env={**os.environ, **folders},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


_STUCK = """
import threading
from queue import SimpleQueue
from modules.config.schema import Config
from trainer.launch import RunHandle, RunRequest
from ui.app.window import App

handle = RunHandle(threading.Thread(target=threading.Event().wait, daemon=True), SimpleQueue())
app = App(launch_run=lambda request: handle)
app.show()
handle.thread.start()
app.context.session.begin(RunRequest(Config()))
print(app.diagnostics.log_file, flush=True)
app.queue.close = lambda: 1 / 0  # an error of what ends with the window does not keep it
answers = iter(("stop", "end"))
app.context.interaction.choose = lambda *question: next(answers)
app.root.after(0, app.closing.ask)
app.root.after(1, app.closing.ask)
app.run()
"""


def test_a_window_ends_without_a_run_that_hangs(tmp_path: Path) -> None:
    done = _run(_STUCK, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "before its run had stopped" in Path(done.stdout.strip()).read_text()
    assert list(tmp_path.rglob("session.json"))


# A second connection asks the server to end the window's own, which Xlib then treats like a server that has died.
_LOST = """
import ctypes, threading
from contextlib import suppress
from queue import SimpleQueue
from modules.config.schema import Config
from trainer.commands import CommandDesk, Pause, StopRequested
from trainer.launch import RunHandle, RunRequest
from ui.app.window import App

desk = CommandDesk()
desk.put(Pause())

def train():
    with suppress(StopRequested):
        desk.check()
    print("backup", flush=True)

handle = RunHandle(threading.Thread(target=train, daemon=True), SimpleQueue(), desk)
app = App(launch_run=lambda request: handle)
app.show()
handle.thread.start()
app.form.edit("training.epochs", 77)  # a moment before the end
if {trains}:
    app.context.session.begin(RunRequest(Config()))
app.queue.close = lambda: 1 / 0  # nor does it cost the run its backup
print(app.diagnostics.log_file, flush=True)
x = ctypes.CDLL("libX11.so.6")
x.XOpenDisplay.restype = ctypes.c_void_p
other = ctypes.c_void_p(x.XOpenDisplay(None))

def end_connection():
    x.XKillClient(other, ctypes.c_ulong(app.root.winfo_id()))
    x.XSync(other, 0)

app.root.after(0, end_connection)
app.run()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no X server")
@pytest.mark.parametrize("trains", [True, False])
def test_a_run_stops_with_its_backup_when_the_display_is_lost(tmp_path: Path, *, trains: bool) -> None:
    """Xlib ended the process in the middle of a step: everything since the last backup was lost."""
    done = _run(_LOST.format(trains=trains), tmp_path)
    assert done.returncode == 1, done.stderr
    log, *rest = done.stdout.splitlines()
    assert rest == (["backup"] if trains else [])
    assert "The display of the window is gone." in Path(log).read_text()
    assert not list(tmp_path.rglob("session*.lock"))
    [session] = tmp_path.rglob("session.json")
    assert '"epochs": 77' in session.read_text(), "what was typed last"


_ASKING = """
import os, signal
from modules.config.schema import Config
from modules.system.problem import Problem
from trainer.launch import RunRequest
from trainer.preflight.report import Report
from ui.app.window import App

app = App()
app.show()
report = Report((Problem("training.epochs", "There are many epochs.", severity="warning"),), None)
app.root.after(0, lambda: app.starter._handle_report(RunRequest(Config()), report))

def end():
    if app.root.grab_current() is None:
        app.root.after(10, end)
    elif {closes}:
        app.root.tk.call(*app.root.tk.splitlist(app.root.protocol("WM_DELETE_WINDOW")))
    else:
        os.kill(os.getpid(), signal.SIGTERM)

app.root.after(10, end)
app.run()
"""


@pytest.mark.parametrize("closes", [True, False])
def test_a_window_ends_quietly_under_a_question(tmp_path: Path, *, closes: bool) -> None:
    """The work that had asked drew its findings in the window that was gone: a traceback for each bar."""
    done = _run(_ASKING.format(closes=closes), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
