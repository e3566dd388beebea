"""A phrase, such as a trigger word, at the beginning or the end of every caption."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from ui.features.captions.replacing import Change

Place = Literal["first", "last", "remove"]


def with_first(line: str, phrase: str) -> str:
    """Return a caption with a phrase at its beginning; one that begins with it stays as it is."""
    if _begins(phrase).match(line):
        return line
    return f"{phrase}, {line.lstrip()}" if line.strip() else phrase


def with_last(line: str, phrase: str) -> str:
    """Return a caption with a phrase at its end; one that ends with it stays as it is."""
    if _ends(phrase).search(line):
        return line
    return f"{line.rstrip().rstrip(',')}, {phrase}" if line.strip() else phrase


def without(line: str, phrase: str) -> str:
    """Return a caption without a phrase at its beginning and its end."""
    return _ends(phrase).sub("", _begins(phrase).sub("", line))


_CHANGES: Mapping[Place, Callable[[str, str], str]] = {"first": with_first, "last": with_last, "remove": without}


def phrase_changes(place: Place, phrase: str, texts: Mapping[Path, str]) -> tuple[Change, ...]:
    """Return the changes that a phrase makes to caption files, given by their texts. Every line is a caption."""
    phrase = phrase.strip().strip(",").strip()
    if not phrase:
        return ()
    found = []
    for path, before in texts.items():
        lines = before.split("\n")  # an empty file gets the phrase; an empty line among others stays
        change = _CHANGES[place]
        after = "\n".join(change(line, phrase) if line.strip() or not before.strip() else line for line in lines)
        if after != before:
            found.append(Change(path, before, after, 1))
    return tuple(found)


def _begins(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"^\s*{re.escape(phrase)}\s*(?:,\s*|$)", re.IGNORECASE)


def _ends(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|,)\s*{re.escape(phrase)}\s*,?\s*$", re.IGNORECASE)
