"""Copies of the files that automatic captions and masks replace, so that nothing is lost."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from modules.system.atomic import copy_file
from modules.system.leftovers import sweep
from modules.system.paths import replaced_files_dir


class Originals:
    """Copies files of a folder into a folder of this run, which is made with the first copy."""

    def __init__(self, folder: Path, keep_in: Path | None = None) -> None:
        self._folder = folder
        self._keep_in = (keep_in or replaced_files_dir()) / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        self.place: Path | None = None
        """The folder with the copies; None as long as there are none."""

    def keep(self, file: Path) -> None:
        """Copy a file, if it exists. Raises OSError where it cannot be copied."""
        if not file.is_file():
            return
        if self.place is None:
            sweep(self._keep_in.parent, is_recursive=True)
        inside = file.relative_to(self._folder) if file.is_relative_to(self._folder) else Path(file.name)
        copy_file(file, self._keep_in / inside)
        self.place = self._keep_in
