"""Which programs load a file completely: diffusers, ComfyUI, A1111 and Forge, from its names and their key maps.

What each takes is as read in or run on them (their states of early 2026), by kind of file in its own file; `complete`
is None where it is not known. Torch-free.
"""

from __future__ import annotations

from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.families.kinds.record import Loads
from modules.families.kinds.registry import FILE_KINDS
from modules.formats.checkpoint_header import CheckpointHeader, read_checkpoint_header
from modules.formats.headers import UnreadableFileError


def who_loads_file(path: Path) -> tuple[FileKind, tuple[Loads, ...]]:
    """Return what a file or folder is and which programs load it; what is shown after a save. Never raises."""
    kind = identify(path)
    if kind.kind == "broken" or path.is_dir():
        return kind, who_loads(None, kind)
    try:
        return kind, who_loads(read_checkpoint_header(path), kind)
    except UnreadableFileError:
        return kind, ()


def who_loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return, for each program, whether it loads a file; empty where nothing is known of such files.

    `header` is None for a folder.
    """
    return FILE_KINDS[kind.kind].loads(header, kind)
