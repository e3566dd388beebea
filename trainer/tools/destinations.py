"""Whether a tool may write to a path: never over its inputs, never over another file unless that is allowed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from modules.system.errors import DarkroomError


def require_free(sources: Sequence[Path], out: Path, *, overwrite: bool) -> None:
    """Raise DarkroomError if the destination is a source, already exists, or has too little disk space."""
    for source in sources:
        if out == source or source in out.parents:
            raise DarkroomError(f"{out} is the source or inside it.", advice="Choose another destination.")
    if out.exists() and not overwrite:
        raise DarkroomError(f"{out} already exists.", advice="Choose another name, or add --overwrite.")
    if out.is_dir() and any(out.iterdir()) and not (out / "model_index.json").is_file():
        raise DarkroomError(f"{out} is a folder with other files in it.", advice="Choose another destination.")
    place = next(p for p in out.parents if p.exists())
    size = _size(sources[0]) if sources else 0
    if shutil.disk_usage(place).free < size // 2:
        raise DarkroomError(f"There is too little free space on the disk of {place}.", advice="Free some space first.")


def _size(source: Path) -> int:
    size = sum(p.stat().st_size for p in source.rglob("*") if p.is_file()) if source.is_dir() else 0
    return size or (source.stat().st_size if source.is_file() else 0)
