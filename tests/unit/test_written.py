"""The record of the results that a run wrote: it proves which files are the run's own, as they are now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.run_folder.result import RESULTS_FILE, abandon_results, record_result, results_of

HUGE = '{"results": [{"path": "x", "step": 1e999, "files": [], "destination": "x", "is_abandoned": false}]}'


def has_written(run_dir: Path, file: Path) -> bool:
    """Return whether a file, as it is now, belongs to a result that a run wrote."""
    return any(f.path == file.absolute() and f.is_unchanged() for r in results_of(run_dir) for f in r.files)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace" / "runs" / "a"
    (folder / "save").mkdir(parents=True)
    return folder


def write(path: Path, content: bytes = b"weights") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_result_is_the_runs_own_as_long_as_no_file_of_it_changes(run_dir: Path, tmp_path: Path) -> None:
    result, sidecar = write(tmp_path / "out" / "model.safetensors"), write(tmp_path / "out" / "model.yaml", b"v: 1")
    assert results_of(run_dir) == []
    assert not has_written(run_dir, result)
    recorded = record_result(run_dir, result, [result, sidecar], step=20)
    assert results_of(run_dir) == [recorded]
    assert recorded.is_unchanged()
    assert has_written(run_dir, result)
    assert has_written(run_dir, sidecar)
    write(sidecar, b"v: 2")  # of the same size
    assert not recorded.is_unchanged()
    assert has_written(run_dir, result)
    assert not has_written(run_dir, sidecar)
    result.unlink()
    assert not has_written(run_dir, result)


def test_a_later_result_at_the_same_path_replaces_the_record(run_dir: Path, tmp_path: Path) -> None:
    one, other = write(tmp_path / "one.safetensors"), write(tmp_path / "other.safetensors", b"other")
    for path, step in ((one, 10), (other, 10), (one, 20)):
        record_result(run_dir, path, [path], step=step)
    assert [(r.path, r.step) for r in results_of(run_dir)] == [(other, 10), (one, 20)]


def test_the_results_of_a_branch_that_was_abandoned_are_marked_and_still_the_runs_own(
    run_dir: Path, tmp_path: Path
) -> None:
    for step in (10, 20):
        path = write(tmp_path / f"{step}.safetensors")
        record_result(run_dir, path, [path], step=step)
    abandon_results(run_dir, after_step=10)
    assert [(r.step, r.is_abandoned) for r in results_of(run_dir)] == [(10, False), (20, True)]
    assert has_written(run_dir, tmp_path / "20.safetensors")


def test_a_result_in_the_runs_folder_is_found_after_the_folder_was_moved(run_dir: Path, tmp_path: Path) -> None:
    path, wanted = write(run_dir / "save" / "model.safetensors"), tmp_path / "full" / "model.safetensors"
    record_result(run_dir, path, [path], step=20, destination=wanted)
    moved = run_dir.rename(tmp_path / "moved")
    assert has_written(moved, moved / "save" / "model.safetensors")
    assert [r.destination for r in results_of(moved)] == [wanted]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"results": 3}', '{"results": [{"path": "x"}]}', "[" * 100_000, HUGE]
)
def test_a_record_that_cannot_be_read_proves_nothing(run_dir: Path, tmp_path: Path, text: str) -> None:
    (run_dir / RESULTS_FILE).write_text(text)
    assert results_of(run_dir) == []
    path = write(tmp_path / "model.safetensors")
    record_result(run_dir, path, [path], step=1)
    assert has_written(run_dir, path)
    assert json.loads((run_dir / RESULTS_FILE).read_text())["results"][0]["step"] == 1
