"""What killed runs left half written, removed and reported at the start of the next run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from modules.system.leftovers import sweep
from modules.system.problem import count
from trainer.events import Event, WarningRaised

_OF_A_RUN = ("backup", "save")  # where the large files are


def remove_unfinished_files(run_dir: Path, destination: Path, emit: Callable[[Event], None]) -> None:
    """Remove what killed programs left in the run's folder, in other runs of its workspace and beside the result.

    What they had moved aside gets its name back. Files of programs that still run stay. A warning names what was done.
    """
    found = sweep(run_dir, is_recursive=True)
    for other in _folders_in(run_dir.parent):
        for name in _OF_A_RUN:
            found += sweep(other / name)
    found += sweep(destination.parent)
    removed = [leftover for leftover in found if not leftover.is_put_back]
    if removed:
        size = sum(leftover.num_bytes for leftover in removed) / 1e9
        emit(
            WarningRaised(
                f"{count(len(removed), 'unfinished file or folder', 'unfinished files or folders')} of programs that "
                f"were killed while writing {'was' if len(removed) == 1 else 'were'} removed, {size:.2f} GB: "
                f"{', '.join(str(leftover.path) for leftover in removed)}."
            )
        )
    for leftover in found:
        if leftover.is_put_back:
            emit(WarningRaised(leftover.words))


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []
