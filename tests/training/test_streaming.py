"""Saves and backups are streamed: they need the memory of one tensor and a little more."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from modules.system.paths import PROGRAM_ROOT

KINDS = ["sd single file", "sd folder", "sd kohya", "sd diffusers", "sdxl single file", "backup"]

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="the system cannot limit a process's memory"),
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
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


def test_saving_needs_the_memory_of_one_tensor(errors: dict[str, str]) -> None:
    assert errors.keys() == {*KINDS, "planted"}
    assert {kind: errors[kind] for kind in KINDS} == dict.fromkeys(KINDS, "")


def test_a_writer_that_keeps_its_chunks_is_caught(errors: dict[str, str]) -> None:
    assert "MemoryError" in errors["planted"] or "can't allocate memory" in errors["planted"]
