"""Saves and backups are streamed: beside what a run holds anyway they take one tensor's room and a little."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from modules.system.paths import PROGRAM_ROOT

KINDS = ["sd single file", "sd folder", "sd kohya", "sd diffusers", "sdxl single file", "backup"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system holds no process to a limit of memory")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong with each kind of file, in a process held to a limit; nothing where it is empty."""
    # One arena: each thread's own would count as taken though nothing is in it.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.builders.streaming", str(tmp_path_factory.mktemp("streaming"))],
        cwd=PROGRAM_ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_what_is_saved_takes_the_room_of_one_tensor(reported: dict[str, str]) -> None:
    assert reported.keys() == {*KINDS, "planted"}
    assert {kind: reported[kind] for kind in KINDS} == dict.fromkeys(KINDS, "")


def test_a_writer_that_keeps_what_it_writes_is_caught(reported: dict[str, str]) -> None:
    assert "MemoryError" in reported["planted"] or "can't allocate memory" in reported["planted"]
