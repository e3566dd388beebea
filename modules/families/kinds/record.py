"""The record of a kind of file: detection, uses, conversion, and which programs load it. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from modules.families.kinds.file_kind import FileKind
from modules.formats.checkpoint_header import CheckpointHeader

Use = Literal["base model", "UNet", "VAE", "start of an adapter"]
Form = Literal["single", "folder", "kohya", "peft"]


@dataclass(frozen=True, slots=True)
class Loads:
    """How completely a program loads a file, and a note for the user.

    `complete` is None where it is unknown. Of the `total` layers of an adapter `loaded` are loaded, and of `unknown`
    others it is not known. `version` is the program's version that this was measured with. `is_main` is false for a
    program that is named only where it does not load the file completely.
    """

    program: str
    complete: bool | None
    note: str = ""
    loaded: int = 0
    total: int = 0
    unknown: int = 0
    version: str = ""
    is_main: bool = True

    @property
    def answer(self) -> str:
        """The result in short: "yes", "no", "?", "48 of 176 layers" or "0 to 50 of 176 layers"."""
        if self.complete:
            return "yes"
        if not self.loaded and self.complete is None:
            return "?"
        if not self.loaded and not self.unknown:
            return "no"
        most = f" to {self.loaded + self.unknown:,}" if self.unknown else ""
        return f"{self.loaded:,}{most} of {self.total:,} layers"

    def to_json(self) -> dict[str, Any]:
        """Return the record as data."""
        counts = {"loaded": self.loaded, "unknown": self.unknown, "total": self.total} if self.total else {}
        version = {"version": self.version} if self.version else {}
        return {"program": self.program, "complete": self.complete, "note": self.note, **counts, **version}


def loads_layers(program: str, loaded: int, total: int, note: str = "", *, unknown: int = 0) -> Loads:
    """Return that a program loads `loaded` of a file's `total` layers; of `unknown` others it is not known."""
    complete = None if unknown and loaded + unknown == total else loaded == total
    return Loads(program, complete, note, loaded, total, unknown)


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
