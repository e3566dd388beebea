"""Describe syntax errors of YAML and TOML files for people who edit configs by hand; JSON's are in `json_errors`."""

from __future__ import annotations

import re

_MAX_QUOTED = 60
_QUOTE_PATHS = "Write paths with /, or put them in single quotation marks."
_QUOTE_TEXT = "Put text in quotation marks."
# What a parser reports, and what is to be done. The first that is part of the report applies.
_YAML_ADVICE = (
    ("'\\t'", "Indent with spaces: YAML allows no tabs."),
    ("unknown escape", _QUOTE_PATHS),
    ("mapping values are not allowed", "Put text with a colon in quotation marks, and indent equal levels alike."),
    ("cannot start any token", _QUOTE_TEXT),
    ("undefined alias", "Put text that begins with * in quotation marks."),
    ("<stream end>", "A bracket or brace is still open at the end."),
    ("end of stream", "A quotation mark is not closed."),
    ("<block end>", "Indent the lines of one level alike."),
    ("could not find expected ':'", "A colon is missing after a name."),
    ("another document", "Only one document is read: remove the line ---."),
    ("constructor for the tag", "Values with a tag (!) are not read."),
)
_TOML_ADVICE = (
    ("Unescaped '\\'", _QUOTE_PATHS),
    ("Invalid hex", _QUOTE_PATHS),
    ("Invalid value", "Put text in quotation marks, and write true and false in small letters."),
    ("Expected '='", "Each line is a name, = and a value."),
    ("Cannot overwrite", "The same name is given twice."),
    ("Cannot declare", "The same section is there twice."),
    ("newline or end of document", "Write each setting in a line of its own, and put text in quotation marks."),
    ("Illegal character", "A quotation mark is not closed in its line."),
    ("Expected '\"'", "A quotation mark is not closed."),
    ('Expected "\'"', "A quotation mark is not closed."),
    ("Expected ']'", "A bracket is not closed in its line."),
    ("Unclosed", "A bracket or brace is still open."),
    ("Invalid statement", "Each line is a name, = and a value."),
)
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")


def describe_yaml_error(text: str, report: str, line: int | None) -> str:
    """Return which line of a YAML text cannot be read and what to do, without a full stop.

    `report` is what the parser states, `line` the line that it names, counted from 1.
    """
    return _description(text, report, line, _YAML_ADVICE)


def describe_toml_error(text: str, report: str) -> str:
    """Return which line of a TOML text cannot be read and what to do, without a full stop."""
    place = _TOML_LINE.search(report)
    return _description(text, report, int(place[1]) if place else None, _TOML_ADVICE)


def _description(text: str, report: str, line: int | None, advice: tuple[tuple[str, str], ...]) -> str:
    lines = text.splitlines()
    quoted = lines[line - 1].strip()[:_MAX_QUOTED] if line and line <= len(lines) else ""
    where = f"line {line} cannot be read" if quoted else "it ends too early, or a value cannot be read"
    what = f"{where}: {quoted}" if quoted else where
    todo = next((todo for part, todo in advice if part in report), "")
    return f"{what}. {todo.removesuffix('.')}" if todo else what
