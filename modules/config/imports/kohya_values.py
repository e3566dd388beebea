"""Read kohya's values: switches and numbers are often text, and empty, "None" and 0 often mean "not set"."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from modules.config.migrations.tree_moves import Notes, number
from modules.system.problem import Problem, quote

Args = dict[str, Any]


def is_set(value: object) -> bool:
    """Return whether a value is set: not null, not empty text, not the word None."""
    return value is not None and not (isinstance(value, str) and value.strip().lower() in ("", "none", "null"))


def pop_first(given: Args, *names: str) -> Any:
    """Pop all given names, which have the same meaning; return the first value that is set, or None."""
    values = [given.pop(name, None) for name in names]
    return next((v for v in values if is_set(v)), None)


def number_of(value: object) -> float | None:
    """Return a number, also from text; None for anything else."""
    return number(value.strip() if isinstance(value, str) else value)


def drop_wrong_numbers(given: Args, names: Iterable[str], notes: Notes) -> None:
    """Remove and report what is set to something else than a number, which the trainer of the file would refuse."""
    for name in names:
        value = given.get(name)
        if is_set(value) and not isinstance(value, bool) and number_of(value) is None:
            del given[name]
            notes.append(Problem("", f"{name} = {quote(value)} is not a number; it is left out.", "warning"))


def last_part(name: object) -> str:
    """Return the name of a result without the folders in it, so that it leads out of no folder: "x" of "../../x"."""
    return PurePosixPath(str(name or "").replace("\\", "/")).name.strip(".")


def flag_of(value: object) -> bool:
    """Return a switch, also from text."""
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
    """Return the value of a Python literal, or the text itself. `ast.literal_eval` executes no code."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
