"""The record of a kind of file: detection, uses, conversion, and which programs load it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from modules.families.kinds.file_kind import FileKind
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.program_table import Word

Use = Literal["base model", "denoiser", "VAE", "start of an adapter"]
Form = Literal["single", "folder", "kohya", "comfyui", "peft"]
ModelType = Literal["checkpoints", "diffusion_models", "vae", "text_encoders", "loras", "embeddings"]
"""The sorts of files that programs keep apart, by ComfyUI's names of the folders."""


@dataclass(frozen=True, slots=True)
class Loads:
    """How much of a file a program loads, and a note for the user; "unknown" without a note: it was not measured.

    `version` is the measured version of the program. `is_main` is false for a program that is named only if it does not
    load the file completely.
    """

    program: str
    loads: Word
    note: str = ""
    version: str = ""
    is_main: bool = True

    @property
    def complete(self) -> bool | None:
        """Whether it loads all of the file; None if that is unknown."""
        return {"all": True, "unknown": None}.get(self.loads, False)

    @property
    def answer(self) -> str:
        """The result in short: "yes", "partly", "no" or "?"."""
        return _ANSWERS[self.loads]

    @property
    def remark(self) -> str:
        """The note, or that there is no answer because it was not measured."""
        return self.note or ("not measured" if self.complete is None else "")

    def to_json(self) -> dict[str, Any]:
        """Return the record as data."""
        version = {"version": self.version} if self.version else {}
        data = {"program": self.program, "loads": self.loads, "complete": self.complete, "note": self.remark}
        return {**data, **version}


_ANSWERS: Mapping[Word, str] = {"all": "yes", "part": "partly", "none": "no", "unknown": "?"}


def loads_whole(program: str, complete: bool | None, note: str = "", *, version: str = "") -> Loads:
    """Return that a program loads a file completely (True), or not at all (False); None if that is unknown."""
    words: dict[bool | None, Word] = {True: "all", False: "none", None: "unknown"}
    return Loads(program, words[complete], note, version)


def no_known_programs(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return nothing: which programs load such a file is unknown."""
    return ()


@dataclass(frozen=True, slots=True)
class FileKindSpec:
    """A kind of file.

    `detect(header)` returns the kind of a matching file, else None; a kind of folder has no `detect`. `uses` are its
    uses in a run; `forms` are the forms that it can be converted into, by `opener` and `writer` ("module:function",
    which import torch); `notes` names the function that returns the losses of a conversion as sentences. `loads(header,
    kind)` returns which programs load it; `header` is None for a folder. `kept_as` is the kind of folder in which
    programs keep such files.
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
    loads: Callable[[CheckpointHeader | None, FileKind], tuple[Loads, ...]] = no_known_programs
    kept_as: ModelType | None = None
