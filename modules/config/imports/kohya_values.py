"""Reading kohya's values: its switches and numbers are often text, and empty, "None" and 0 often mean "not set"."""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any

from modules.config.migrations.taking import number

Args = dict[str, Any]


def said(value: object) -> bool:
    """Return whether a value says anything: not null, not empty text, not the word None."""
    return value is not None and not (isinstance(value, str) and value.strip().lower() in ("", "none", "null"))


def taken(given: Args, *names: str) -> Any:
    """Pop all of some names, which mean the same; return the first value that says anything, else None."""
    values = [given.pop(name, None) for name in names]
    return next((v for v in values if said(v)), None)


def number_of(value: object) -> float | None:
    """Return a number, from text too; None where there is none."""
    return number(value.strip() if isinstance(value, str) else value)


def flag_of(value: object) -> bool:
    """Return a switch, from text too."""
    return value.strip().lower() in ("true", "1", "yes") if isinstance(value, str) else bool(value)


def sides_of(value: object) -> tuple[int, int] | None:
    """Return a size as width and height: 512, "512", "768,512", "(768, 512)", [768, 512]; None for anything else."""
    texts = value if isinstance(value, list | tuple) else re.findall(r"\d+(?:\.\d+)?", str(value))
    sides = [int(n) for v in texts[:2] if (n := number_of(v)) is not None and n >= 1]
    if not sides:
        return None
    return sides[0], sides[-1]


def arguments_of(value: object) -> Args:
    """Return `key=value` arguments ("weight_decay=0.1 betas=0.9,0.99", or a list, or a JSON object) by key."""
    if isinstance(value, dict):
        return dict(value)
    parts = value if isinstance(value, list) else _split(value) if isinstance(value, str) else []
    result: Args = {}
    for part in parts:
        key, equals, text = str(part).partition("=")
        if equals and key.strip():
            result[key.strip()] = _literal(text.strip())
    return result


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quotation mark
        return text.split()


def _literal(text: str) -> Any:
    """Return the Python literal that a text is, else the text. `ast.literal_eval` runs nothing."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
