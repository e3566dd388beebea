"""Which programs load a file completely: diffusers, ComfyUI, A1111 and Forge, by its names and their key maps.

The facts were read from or tested on these programs (versions of early 2026) and are in the file of each kind;
`complete` is None where it is unknown. Torch-free.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify_with_header
from modules.families.kinds.record import Loads, loads_whole
from modules.families.kinds.registry import FILE_KINDS
from modules.families.published import ALL_PROGRAMS
from modules.formats.checkpoint_header import CheckpointHeader

_NOT_MEASURED = "not measured"
_OF_GGUF = {
    "A1111": "does not read GGUF",
    "ComfyUI": "with the nodes of ComfyUI-GGUF; not measured",
    "diffusers": "by from_single_file, with a GGUFQuantizationConfig; not measured",
}


def who_loads_file(path: Path) -> tuple[FileKind, tuple[Loads, ...]]:
    """Return the kind of a file or folder and which programs load it, for the report after a save. Never raises."""
    kind, header = identify_with_header(path)
    return kind, who_loads(header, kind)


def who_loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return, for each program, whether it loads a file; empty where nothing is known about such files.

    `header` is None for a folder.
    """
    if header is not None and header.container == "gguf" and kind.family:
        return tuple(
            loads_whole(p, False if p == "A1111" else None, _OF_GGUF.get(p, _NOT_MEASURED)) for p in ALL_PROGRAMS
        )
    loads = FILE_KINDS[kind.kind].loads(header, kind)
    if header is not None and header.code:
        return tuple(replace(x, loads="none", note="not safe to load") for x in loads)
    return loads
