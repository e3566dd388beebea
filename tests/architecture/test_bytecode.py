"""The compiled modules that the tests keep."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import stale_bytecode


def test_compiled_modules_without_their_source_or_of_another_python_are_stale(tmp_path: Path) -> None:
    """They stayed for good: renamed tests and modules, and those of an older Python."""
    sources, kept = tmp_path / "sources", tmp_path / "bytecode"
    tag = sys.implementation.cache_tag
    folder = kept.joinpath(*sources.parts[1:])
    for place in (sources, folder):
        place.mkdir(parents=True)
    (sources / "here.py").touch()
    for name in (f"here.{tag}", f"here.{tag}-pytest-9.0.1", f"gone.{tag}", "here.cpython-29"):
        (folder / f"{name}.pyc").touch()
    assert {file.name for file in stale_bytecode(kept)} == {f"gone.{tag}.pyc", "here.cpython-29.pyc"}
