"""Describe JSON syntax errors for people who edit configs by hand."""

from __future__ import annotations

import json
import re

_BACKSLASH = "Invalid \\"  # before a letter that means nothing, or as the \\u of a Unicode character
_PLAINER = {
    "Expecting value": "a value is missing",
    "Expecting ',' delimiter": "a comma is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting property name enclosed in double quotes": "a name in double quotation marks is missing",
    "Extra data": "there is text after the end",
}
_PYTHON_LITERAL = re.compile(r"True|False|None")


def describe_error(text: str, error: json.JSONDecodeError) -> str:
    """Return the mistake and its line, as half a sentence. An extra comma is reported at its own line."""
    if not text.strip():
        return "it is empty"
    comma = _comma_too_many(text, error)
    if comma is not None:
        return f"line {_line(text, comma)} has an extra comma"
    if error.msg.startswith(_BACKSLASH):
        return f"line {error.lineno} has a single backslash in a string"
    if not text[error.pos :].strip():
        return f"it ends in line {error.lineno} with brackets or braces still open"
    if error.msg.startswith("Unterminated string"):
        return f"line {error.lineno} has a string without a closing quotation mark"
    if error.msg.startswith("Invalid control"):
        return f"line {error.lineno} has a string that continues on the next line"
    plainer = _PLAINER.get(error.msg, error.msg[:1].lower() + error.msg[1:])
    return f"in line {error.lineno}, column {error.colno}, {plainer}"


def advice_for(text: str, error: json.JSONDecodeError) -> str:
    """Return how to fix it; empty if the description is enough."""
    if error.msg.startswith(_BACKSLASH):
        return "Write paths with /, or double each backslash."
    if text[error.pos : error.pos + 2] in ("//", "/*") or text[error.pos : error.pos + 1] == "#":
        return "JSON does not allow comments: remove them."
    if word := _PYTHON_LITERAL.match(text, error.pos):
        written = {"True": "true", "False": "false", "None": "null"}[word[0]]
        return f"Write {written} instead of {word[0]}."
    return ""


def _comma_too_many(text: str, error: json.JSONDecodeError) -> int | None:
    """Return the position of a comma with nothing after or before it at the error; None if there is no such comma."""
    if text[error.pos : error.pos + 1] == ",":
        return error.pos if not error.msg.startswith("Expecting ':'") else None
    before = text[: error.pos].rstrip()
    is_at_end = text[error.pos :].lstrip()[:1] in ("}", "]")
    return len(before) - 1 if is_at_end and before.endswith(",") else None


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
