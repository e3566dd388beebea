"""The record of a kind of file: how it is recognised, what can be done with it, which programs load it. Torch-free."""

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
    """Whether a program loads a file with nothing left out, and what is to be known about it."""

    program: str
    complete: bool | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the record as data."""
        return {"program": self.program, "complete": self.complete, "note": self.note}


def nobody_known(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return nothing: which programs load such a file is not known."""
    return ()


@dataclass(frozen=True, slots=True)
class FileKindSpec:
    """A kind of file.

    `detect(header)` recognises it in a file, None where it is none or a folder is looked at otherwise. `uses` is what a
    run can take it as; `forms` is what it can be converted into, by `opener` and `writer` ("module:function", of
    torch's side). `loads(header, kind)` says which programs load it; `header` is None for a folder.
    """

    name: str
    label: str
    help: str
    detect: Callable[[CheckpointHeader], FileKind | None] | None = None
    uses: frozenset[Use] = frozenset()
    forms: tuple[Form, ...] = ()
    opener: str = ""
    writer: str = ""
    loads: Callable[[CheckpointHeader | None, FileKind], tuple[Loads, ...]] = nobody_known
