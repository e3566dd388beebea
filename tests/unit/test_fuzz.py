"""Changed files of every kind that the program reads: no unexpected error, and no code from a file.

`python -m tests.builders.fuzzing --seconds 600` is the long run; here each reader gets a few files, always the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.fuzz_readers import READERS, Reader
from tests.builders.fuzzing import run

_COUNT = 60


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_changed_files(reader: Reader, tmp_path: Path) -> None:
    report = run(reader, tmp_path, seed=0, count=_COUNT)
    assert report.num_files == _COUNT
    assert not report.faults, "\n".join(f"{times} x {fault}" for fault, times in report.faults.items())


@pytest.mark.full
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_many_changed_files(reader: Reader, tmp_path: Path) -> None:
    report = run(reader, tmp_path, seed=1, count=2_000)
    assert not report.faults, "\n".join(f"{times} x {fault}" for fault, times in report.faults.items())
