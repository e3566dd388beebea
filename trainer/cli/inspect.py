"""inspect: the kind of a model file or folder, the programs that load it, and its metadata. Reads headers only."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from modules.families.kinds.record import Loads
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.tools.inspection import Inspection, inspect_file

_MAX_CHARS = 100
_MAX_LINE_CHARS = 5_000
_MAX_LINES = 500
_PIECE_CHARS = 1_000_000


def _inspect(options: argparse.Namespace) -> int:
    found = inspect_file(from_caller(options.file))
    if options.json:
        loads = [x.to_json() for x in found.loads]
        data = {**found.kind.to_json(), "path": str(found.path), "loads": loads, "metadata": dict(found.metadata)}
        for piece in json.JSONEncoder(indent=2).iterencode(data):  # metadata may be as large as a file
            for start in range(0, len(piece), _PIECE_CHARS):
                sys.stdout.write(piece[start : start + _PIECE_CHARS])
        sys.stdout.write("\n")
    else:
        for line in _lines(found):
            _print(line)
    return 0 if found.is_sound else 2


def _lines(found: Inspection) -> list[str]:
    lines = [str(found.path), found.kind.sentence]
    lines += [f"  {name}: {value}" for name, value in found.facts]
    lines += _program_lines(found.shown_loads)
    metadata = found.metadata
    if metadata:
        lines += ["", "Metadata"]
        lines += [f"  {_short(name)}: {_short(value)}" for name, value in sorted(metadata.items())[:_MAX_LINES]]
        if len(metadata) > _MAX_LINES:
            lines.append(f"  … and {len(metadata) - _MAX_LINES:,} more; --json prints all")
    return lines


def _program_lines(shown: Sequence[Loads]) -> list[str]:
    """Return which programs load the file completely."""
    if not shown:
        return []
    widths = [max(map(len, column)) for column in zip(*((x.program, x.answer) for x in shown), strict=True)]
    rows = (f"  {x.program:{widths[0]}}  {x.answer:{widths[1]}}  {x.note}".rstrip() for x in shown)
    return ["", "Loaded completely by", *rows]


def _print(line: str) -> None:
    """Write a line; control characters, and characters that the terminal cannot show, are replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[:_MAX_LINE_CHARS])
    sys.stdout.write(shown.encode(encoding, "replace").decode(encoding) + "\n")


def _short(value: str) -> str:
    line = " ".join(value[: 2 * _MAX_CHARS].split())
    is_whole = len(line) <= _MAX_CHARS and len(value) <= 2 * _MAX_CHARS
    return line if is_whole else f"{line[:_MAX_CHARS]}… ({len(value):,} characters)"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a model, LoRA, VAE or embedding, or a diffusers folder")
    parser.add_argument("--json", action="store_true", help="print as JSON, with the complete metadata")


INSPECT = Verb("describe a model file and list the programs that load it", _arguments, _inspect)
