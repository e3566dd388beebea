"""Converts a model or a LoRA between its forms. The input's form is detected.

model   diffusers folder, .safetensors or .ckpt in the original layout -> folder or .safetensors
LoRA    any form -> kohya or diffusers/PEFT form; other adapters -> kohya form

The record of each kind of file names the functions that open and write it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import torch

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.families.kinds.record import Form
from modules.families.kinds.registry import FILE_KINDS
from modules.families.kinds.source import Source
from modules.families.registry import FAMILIES
from modules.formats.safetensors_io import OnWritten
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory

_ADVICE: dict[Form, str] = {"kohya": "Use --to kohya or --to peft.", "single": "Use --to single or --to folder."}


def target_form(kind: FileKind, out: Path, wanted: Form | None) -> Form:
    """Return the form to convert into: the wanted one, else the one that follows from the source and the name of the
    output. Raises DarkroomError where source and form do not match.
    """
    forms = FILE_KINDS[kind.kind].forms or ("single", "folder")  # `open_source` rejects kinds that cannot be converted
    is_file = out.suffix.lower() == ".safetensors"
    if wanted is not None and wanted not in forms:
        what = "LoRA" if "kohya" in forms else "model"
        raise DarkroomError(
            f"A {what} cannot be converted into a {wanted} {'model' if what == 'LoRA' else 'LoRA'}.",
            advice=_ADVICE[forms[0]],
        )
    if "kohya" in forms:
        form: Form = wanted or ("peft" if _has_peft_form(kind) else "kohya")
    else:
        form = wanted or ("single" if is_file else "folder")
    if (form == "folder") == bool(out.suffix.lower() in (".safetensors", ".ckpt", ".pt")):
        raise DarkroomError(
            f"{out.name} is not a valid name for {'a folder' if form == 'folder' else 'a file of that form'}.",
            advice="Names of files end in .safetensors; the name of a diffusers folder does not.",
        )
    return form


def _has_peft_form(kind: FileKind) -> bool:
    """Whether the PEFT form is the other form of an adapter file: of LoRA alone, in kohya's form."""
    return kind.facts.get("form") == "kohya" and kind.facts.get("adapter") in ("LoRA", "DoRA (LoRA)")


def open_source(path: Path, *, use_ema: bool = False) -> Source:
    """Open a file or folder for conversion. Raises DarkroomError where it cannot be converted."""
    kind = identify(path)
    opener = FILE_KINDS[kind.kind].opener
    if not opener:
        raise DarkroomError(
            f"{path.name} cannot be converted. {kind.sentence}",
            advice=f"Choose a whole model or a LoRA file of {', '.join(s.label for s in FAMILIES.values())}.",
        )
    opened: Callable[..., Source] = load_factory(opener)
    return opened(path, kind, use_ema=use_ema)


def conversion_notes(source: Source, form: Form) -> tuple[str, ...]:
    """Return what the conversion into a form changes or cannot keep, a sentence each."""
    reference = FILE_KINDS[source.kind.kind].notes
    found: tuple[str, ...] = load_factory(reference)(source, form) if reference else ()
    return found


def convert(
    source: Source,
    out: Path,
    form: Form,
    *,
    dtype: torch.dtype | None,
    created: datetime,
    on_written: OnWritten | None = None,
) -> list[Path]:
    """Write an opened model or LoRA in another form and return the files and folders written.

    Raises DarkroomError where a tensor is missing or not finite; an existing output is left unchanged then.
    """
    writer: Callable[..., list[Path]] = load_factory(FILE_KINDS[source.kind.kind].writer)
    return writer(source, out, form, dtype=dtype, created=created, on_written=on_written)
