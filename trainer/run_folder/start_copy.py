"""The run's own copies of the files that it started from, so that resuming does not need those. Torch-free."""

from __future__ import annotations

from pathlib import Path


def start_copy_in(run_dir: Path) -> Path:
    """Return the path of the copy in a run's folder, whether or not it exists: a run with a new adapter has none."""
    return run_dir / "start.safetensors"


def existing_start_copy(run_dir: Path) -> Path | None:
    """Return the path of the copy in a run's folder if it exists."""
    path = start_copy_in(run_dir)
    return path if path.is_file() else None


def weights_copy_in(run_dir: Path) -> Path:
    """Return the path of the copy of another run's weights; only a fork with weights only may have one."""
    return run_dir / "start_weights.safetensors"
