"""Wildcards: `{red|blue} car` stands for one of its options."""

from __future__ import annotations

import random
import re

_INNERMOST = re.compile(r"(?<!\\)\{((?:[^{}\\]|\\.)*)\}", re.DOTALL)
_BRACE = re.compile(r"(?<!\\)[{}]")
_ESCAPED = re.compile(r"\\([{}|])")


def has_wildcards(text: str) -> bool:
    """Return whether resolving the wildcards of a text may draw from the generator."""
    return _INNERMOST.search(text) is not None


def has_single_brace(text: str) -> bool:
    """Return whether a text has a brace without its counterpart, which `resolve_wildcards` leaves as it is."""
    found = 1
    while found:
        text, found = _INNERMOST.subn("", text)
    return _BRACE.search(text) is not None


def resolve_wildcards(text: str, generator: random.Random) -> str:
    r"""Return a text with each `{a|b}` replaced by one of its options, each equally likely.

    Options may contain wildcards, and may be empty. `\{`, `\}` and `\|` stand for the plain character; a brace without
    its counterpart stays.
    """
    while (found := _INNERMOST.search(text)) is not None:
        option = generator.choice(re.split(r"(?<!\\)\|", found[1]))
        text = text[: found.start()] + option + text[found.end() :]
    return _ESCAPED.sub(r"\1", text)
