"""convert: a model between diffusers folder and single file, a LoRA between kohya and PEFT format, any of them to
another dtype.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from datetime import datetime
from pathlib import Path

from modules.families.kinds.identify import identify
from modules.families.kinds.registry import FILE_KINDS
from modules.families.kinds.unrecognised import BROKEN
from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.console import Meter

_FORMS = tuple(dict.fromkeys(form for kind in FILE_KINDS.values() for form in kind.forms))
_DTYPES = ("float16", "bfloat16", "float32")
_MB = 1_000_000


def _convert(options: argparse.Namespace) -> int:
    source, out = from_caller(options.source), from_caller(options.out)
    _require_free(source, out, overwrite=options.overwrite)
    kind = identify(source)
    if kind.kind == BROKEN.name:  # reported before torch is loaded
        raise DarkroomError(kind.sentence)
    from modules.families.kinds.conversion import conversion_notes, convert, open_source, target_form
    from modules.families.kinds.inpainting_conversion import as_inpainting
    from modules.system.dtypes import dtype_of

    form = target_form(kind, out, options.to)
    if form == "single":
        _require_free(source, out.with_suffix(".yaml"), overwrite=options.overwrite)
    meter = Meter()

    def report(done: int, total: int) -> None:
        meter.progress("writing (MB)", done // _MB, -(-total // _MB), "")

    try:
        opened = open_source(source, use_ema=options.ema)
        if options.to_inpainting:
            opened = as_inpainting(opened)
        written = convert(
            opened,
            out,
            form,
            dtype=dtype_of(options.dtype) if options.dtype else None,
            created=datetime.now().astimezone(),
            on_written=report,
        )
    except OSError as error:
        raise DarkroomError(f"{out} could not be written: {error}. Existing files were not changed.") from error
    except KeyboardInterrupt:
        meter.line("Stopped. Nothing was written.")
        return 130
    meter.close()
    meter.line(kind.sentence)
    if options.to_inpainting:
        meter.line("It is an inpainting model now, which predicts the same as before until it is trained as one.")
    for note in conversion_notes(opened, form):
        meter.line(note)
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


def _require_free(source: Path, out: Path, *, overwrite: bool) -> None:
    """Raise DarkroomError if the destination is the source, already exists, or has too little disk space."""
    if out == source or source in out.parents:
        raise DarkroomError(f"{out} is the source or inside it.", advice="Choose another destination.")
    if out.exists() and not overwrite:
        raise DarkroomError(f"{out} already exists.", advice="Choose another name, or add --overwrite.")
    if out.is_dir() and any(out.iterdir()) and not (out / "model_index.json").is_file():
        raise DarkroomError(f"{out} is a folder with other files in it.", advice="Choose another destination.")
    place = next(p for p in out.parents if p.exists())
    size = sum(p.stat().st_size for p in source.rglob("*") if p.is_file()) if source.is_dir() else 0
    size = size or (source.stat().st_size if source.is_file() else 0)
    if shutil.disk_usage(place).free < size // 2:
        raise DarkroomError(f"There is too little free space on the disk of {place}.", advice="Free some space first.")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="a model file, a diffusers folder or a LoRA")
    parser.add_argument("out", metavar="OUT", help="a .safetensors file, or a folder for a model in diffusers layout")
    parser.add_argument(
        "--to",
        choices=_FORMS,
        help="the output format (default: by the name of OUT; for a LoRA in kohya format peft, else kohya)",
    )
    parser.add_argument("--dtype", choices=_DTYPES, help="the output dtype (default: unchanged)")
    parser.add_argument("--ema", action="store_true", help="use the EMA weights if a checkpoint has both")
    parser.add_argument(
        "--to-inpainting",
        action="store_true",
        help="turn a base model into an inpainting model that predicts the same, to be trained as one",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing OUT")


CONVERT = Verb("convert a model or a LoRA to another format or dtype", _arguments, _convert)
