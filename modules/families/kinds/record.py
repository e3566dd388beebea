"""The record of a kind of file: detection, uses, conversion, and which programs load it. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from modules.families.kinds.file_kind import FileKind
from modules.formats.checkpoint_header import CheckpointHeader

Use = Literal["base model", "VAE", "start of an adapter"]
Form = Literal["single", "folder", "kohya", "peft"]


@dataclass(frozen=True, slots=True)
class Loads:
    """Whether a program loads a file completely (None: unknown), and a note for the user."""

    program: str
    complete: bool | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the record as data."""
        return {"program": self.program, "complete": self.complete, "note": self.note}


def nobody_known(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return nothing: which programs load such a file is unknown."""
    return ()


@dataclass(frozen=True, slots=True)
class FileKindSpec:
    """A kind of file.

    `detect(header)` returns the kind if a file is of it, else None; a kind of folder has no `detect`. `uses` is what a
    run can use it as; `forms` is what it can be converted into, by `opener` and `writer` ("module:function", which
    import torch); `notes` names the function that returns what a conversion changes or cannot keep.
    `loads(header, kind)` returns which programs load it; `header` is None for a folder.
    """

    name: str
    label: str
    help: str
    detect: Callable[[CheckpointHeader], FileKind | None] | None = None
    uses: frozenset[Use] = frozenset()
    forms: tuple[Form, ...] = ()
    opener: str = ""
    writer: str = ""
    notes: str = ""
    loads: Callable[[CheckpointHeader | None, FileKind], tuple[Loads, ...]] = nobody_known
