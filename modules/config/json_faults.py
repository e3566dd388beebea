"""What is wrong with a text that is no JSON, as a person who edited it by hand would be told."""

from __future__ import annotations

import json
import re

_BACKSLASH = "Invalid \\"  # before a letter that means nothing, or as the \\u of a Unicode character
_PLAINER = {
    "Expecting value": "a value is missing",
    "Expecting ',' delimiter": "a comma is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting property name enclosed in double quotes": "a name in double quotation marks is missing",
    "Extra data": "something stands after the end",
}
_WORDS_OF_PYTHON = re.compile(r"True|False|None")


def fault_of(text: str, error: json.JSONDecodeError) -> str:
    """Return what is wrong and in which line, as half a sentence. A comma too many is told where it stands."""
    if not text.strip():
        return "it is empty"
    comma = _comma_too_many(text, error)
    if comma is not None:
        return f"in line {_line(text, comma)} there is a comma too many"
    if error.msg.startswith(_BACKSLASH):
        return f"in line {error.lineno} a single backslash stands in a text"
    if not text[error.pos :].strip():
        return f"it ends in line {error.lineno}, before all that was opened is closed"
    if error.msg.startswith("Unterminated string"):
        return f"in line {error.lineno} a text has no closing quotation mark"
    if error.msg.startswith("Invalid control"):
        return f"in line {error.lineno} a text goes on into the next line"
    plainer = _PLAINER.get(error.msg, error.msg[:1].lower() + error.msg[1:])
    return f"in line {error.lineno}, column {error.colno}, {plainer}"


def advice_for(text: str, error: json.JSONDecodeError) -> str:
    """Return what to do about it; nothing where the fault says that itself."""
    if error.msg.startswith(_BACKSLASH):
        return "Write paths with /, or each backslash twice."
    if text[error.pos : error.pos + 2] in ("//", "/*") or text[error.pos : error.pos + 1] == "#":
        return "JSON has no comments: take them out."
    if word := _WORDS_OF_PYTHON.match(text, error.pos):
        written = {"True": "true", "False": "false", "None": "null"}[word[0]]
        return f"Write {written} in place of {word[0]}."
    return ""


def _comma_too_many(text: str, error: json.JSONDecodeError) -> int | None:
    """Return where a comma stands that has nothing after it, or before it, at the fault; None where there is none."""
    if text[error.pos : error.pos + 1] == ",":
        return error.pos if not error.msg.startswith("Expecting ':'") else None
    before = text[: error.pos].rstrip()
    is_at_end = text[error.pos :].lstrip()[:1] in ("}", "]")
    return len(before) - 1 if is_at_end and before.endswith(",") else None


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
