"""Prompts without images: a text file with one per line, a table with a column of prompts, or a folder of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from modules.data.archives import read_bytes, status_of
from modules.data.captions.sources import CaptionFault, decode_text, text_lines
from modules.data.listing import SkippedEntry, walk
from modules.data.metadata import (
    CAPTION_COLUMNS,
    MetadataProblem,
    columns_phrase,
    read_rows,
    texts_of_row,
    usual_columns,
)
from modules.data.scan import Scan
from modules.data.source_image import SourceImage
from modules.data.tables import TABLE_SUFFIXES, read_texts, table_facts
from modules.system.problem import quote

_TEXT_SUFFIX = ".txt"
PROMPT_SUFFIXES = (_TEXT_SUFFIX, ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_COMMENT = "#"
_MAX_BYTES = 2_000_000_000  # of a text file


def scan_prompts(
    source: Path,
    *,
    include_subfolders: bool,
    columns: Sequence[str] = (),
    watch: Callable[[int, int], None] = lambda _done, _all: None,
) -> Scan:
    """Return the prompts of a file, or of the files of a folder, in the order of their names and lines.

    Each is a `SourceImage` without an image and without a size yet. Of a text file every line is a prompt, apart from
    empty ones and those that begin with "#"; of a table the row's texts in `columns` are one, by default in the first
    of the usual columns of captions; rows without a text are left out. Raises OSError for an unreadable source.
    """
    skipped: list[SkippedEntry] = []
    if source.is_file():
        files = [source]
    else:
        files = sorted(walk(source, include_subfolders=include_subfolders, skipped=skipped))
        files = [f for f in files if f.suffix.lower() in PROMPT_SUFFIXES and not f.name.startswith(".")]
    prompts: list[SourceImage] = []
    for number, file in enumerate(files):
        watch(number, len(files))
        prompts += _prompts_of(file, columns, skipped)
    return Scan(tuple(prompts), tuple(sorted(skipped, key=lambda s: s.path)))


def _prompts_of(file: Path, columns: Sequence[str], skipped: list[SkippedEntry]) -> Iterator[SourceImage]:
    """Yield the prompts of a file; what is wrong with it is added to `skipped`."""
    if file.suffix.lower() not in PROMPT_SUFFIXES:
        skipped.append(SkippedEntry(file, f"not a file of prompts; it must be one of {', '.join(PROMPT_SUFFIXES)}"))
        return
    fault: CaptionFault = ""
    named: list[tuple[str, tuple[str, ...]]]
    try:
        status = status_of(file)
        if file.suffix.lower() == _TEXT_SUFFIX:
            text, fault = decode_text(read_bytes(file, _MAX_BYTES))
            named = [(f"line {n}", (line,)) for n, line in _lines(text)]
        else:
            problems: list[MetadataProblem] = []
            named = [(f"row {n}", texts) for n, texts in _rows(file, columns, problems)]
            skipped += [SkippedEntry(file, problem.reason, problem.setting) for problem in problems]
    except OSError as error:
        skipped.append(SkippedEntry(file, f"cannot be read ({error.strerror or error})"))
        return
    for name, texts in named:
        yield SourceImage(file, name, 0, 0, status.size_bytes, status.mtime_ns, texts, fault, file, has_image=False)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text_lines(text), start=1):
        prompt = line.strip()
        if prompt and not prompt.startswith(_COMMENT):
            yield number, prompt


def _rows(file: Path, columns: Sequence[str], problems: list[MetadataProblem]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the texts of a table's rows, each with the number of its row from 1 on.

    What is wrong with the table is added to `problems`. Raises OSError.
    """
    if file.suffix.lower() in TABLE_SUFFIXES:
        known: Sequence[str] = table_facts(file).columns
        wanted = [c for c in known if c in (columns or CAPTION_COLUMNS)]
        rows = read_texts(file, wanted) if wanted else []
    else:
        rows = [row for _, row in read_rows(file, problems)]
        known = list(dict.fromkeys(name for row in rows for name in row))
    chosen = columns or usual_columns(known)
    if known and not chosen:
        reason = f"has no column text, caption or prompt; {columns_phrase(known)}"
        problems.append(MetadataProblem(reason, "caption_columns"))
    missing = [quote(c) for c in chosen if known and c not in known]
    problems += [MetadataProblem(f"has no column {c}; {columns_phrase(known)}", "caption_columns") for c in missing]
    for number, row in enumerate(rows, start=1):
        if texts := texts_of_row(row, chosen):
            yield number, texts
