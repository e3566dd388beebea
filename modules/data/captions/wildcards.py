"""Wildcards: `{red|blue} car` stands for one of its options."""

from __future__ import annotations

import random
import re

_INNERMOST = re.compile(r"(?<!\\)\{((?:[^{}\\]|\\.)*)\}", re.DOTALL)
_BRACES = re.compile(r"(?<!\\)\{|\\.|\}", re.DOTALL)
_MAX_CHARS = 100_000
_ESCAPED = re.compile(r"\\([{}|])")


def has_wildcards(text: str) -> bool:
    """Return whether resolving the wildcards of a text may draw from the generator."""
    return len(text) <= _MAX_CHARS and _INNERMOST.search(text) is not None


def has_single_brace(text: str) -> bool:
    """Return whether a text has a brace without its counterpart, which `resolve_wildcards` leaves as it is."""
    num_open = 0
    for found in _BRACES.finditer(text):
        num_open += {"{": 1, "}": -1}.get(found[0], 0)
        if num_open < 0:
            return True
    return num_open > 0


def resolve_wildcards(text: str, generator: random.Random) -> str:
    r"""Return a text with each `{a|b}` replaced by one of its options, each equally likely.

    Options may contain wildcards, and may be empty. `\{`, `\}` and `\|` stand for the plain character; a brace without
    its counterpart stays. A text of more than 100,000 characters is returned as it is: each wildcard takes time that
    grows with its length.
    """
    if len(text) > _MAX_CHARS:
        return text
    position = 0
    while (found := _INNERMOST.search(text, position)) is not None:
        option = generator.choice(re.split(r"(?<!\\)\|", found[1]))
        position = _last_open(text, found.start())
        text = text[: found.start()] + option + text[found.end() :]
    return _ESCAPED.sub(r"\1", text)


def _last_open(text: str, end: int) -> int:
    """Return the place of the last brace before `end` that may open a wildcard; `end` without one.

    No wildcard before it can be complete: that brace would be inside.
    """
    position = text.rfind("{", 0, end)
    while position > 0 and text[position - 1] == "\\":
        position = text.rfind("{", 0, position)
    return position if position >= 0 else end
