"""Ctrl-C while Python is still importing the program ends it without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT

# Python imports it before the program, which is interrupted as it imports a module of its own. Tests in the background
# of a shell ignore Ctrl-C, as do the processes that they start.
_INTERRUPTING = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "modules.system.process_setup":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send Ctrl-C to one process")
@pytest.mark.parametrize("arguments", [["trainer", "schema"], ["ui", "--help"]], ids=["trainer", "ui"])
def test_an_interrupt_during_the_imports_prints_nothing(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTING)
    paths = os.pathsep.join([str(tmp_path), str(PROGRAM_ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=PROGRAM_ROOT, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
