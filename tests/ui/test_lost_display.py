"""The display goes away under the window: its X server dies, or the user is logged out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT

# A second connection asks the server to end the window's own, which Xlib then treats like a server that has died.
_CODE = """
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
if {trains}:
    app.context.session.begin(RunRequest(Config()))
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
    folders = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CONFIG", "STATE", "CACHE", "DATA")}
    done = subprocess.run(
        [sys.executable, "-c", _CODE.format(trains=trains)],
        cwd=PROGRAM_ROOT,
        env={**os.environ, **folders},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    log, *rest = done.stdout.splitlines()
    assert rest == (["backup"] if trains else [])
    assert "The display of the window is gone." in Path(log).read_text()
    assert not list(tmp_path.rglob("session*.lock"))
