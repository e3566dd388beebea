"""The tags of a caption's line: shown as chips, added, removed and moved without touching the rest. No Tk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

DELIMITER = ","
_MAX_WORDS = 5
_MAX_SUGGESTIONS = 8


def tags_of(line: str) -> tuple[str, ...]:
    """Return the tags of a line, without the spaces around them; empty ones are left out."""
    return tuple(tag for piece in line.split(DELIMITER) if (tag := piece.strip()))


def with_tag(line: str, tag: str) -> str:
    """Return a line with a tag at its end; a tag that it has stays where it is."""
    tag = tag.strip().strip(DELIMITER).strip()
    if not tag or tag in tags_of(line):
        return line
    kept = line.rstrip()
    if not kept:
        return f"{line}{tag}"
    space = " " if ", " in line or DELIMITER not in line else ""
    joint = f"{DELIMITER}{space}" if not kept.endswith(DELIMITER) else space
    return f"{kept}{joint}{tag}"


def without_tag(line: str, index: int) -> str:
    """Return a line without one of its tags, and without its delimiter."""
    pieces = line.split(DELIMITER)
    place = _places(pieces)[index]
    indent = pieces[0][: len(pieces[0]) - len(pieces[0].lstrip())]
    del pieces[place]
    if place == 0 and pieces:
        pieces[0] = indent + pieces[0].lstrip()
    return DELIMITER.join(pieces)


def moved_tag(line: str, index: int, to: int) -> str:
    """Return a line with one of its tags at another place; the spaces between tags stay where they are."""
    pieces = line.split(DELIMITER)
    places = _places(pieces)
    order = [pieces[place].strip() for place in places]
    order.insert(min(max(0, to), len(order) - 1), order.pop(index))
    for place, tag in zip(places, order, strict=True):
        old = pieces[place]
        pieces[place] = old.replace(old.strip(), tag, 1)
    return DELIMITER.join(pieces)


def line_at(text: str, line: int) -> str:
    """Return a line of a text by its number from 0; empty beyond the last one."""
    lines = text.split("\n")
    return lines[line] if 0 <= line < len(lines) else ""


def line_of_tags(text: str) -> int:
    """Return the number of the line with the most tags; of equal ones the first."""
    lines = text.split("\n")
    return max(range(len(lines)), key=lambda number: (len(tags_of(lines[number])), -number))


def tag_counts(texts: Iterable[str]) -> Counter[str]:
    """Return how often each tag occurs in the captions of a data set; sentences do not count."""
    return Counter(
        tag for text in texts for line in text.split("\n") for tag in tags_of(line) if tag.count(" ") < _MAX_WORDS
    )


def suggestions(typed: str, counts: Counter[str], *, present: Iterable[str] = ()) -> tuple[str, ...]:
    """Return tags of the data set that match a typed text: first those that begin with it, the most frequent first.

    Spaces and underscores are equal. Tags that the line has are left out.
    """
    wanted = _plain(typed)
    if not wanted:
        return ()
    there = set(present)
    found = [
        (not plain.startswith(wanted), -number, tag)
        for tag, number in counts.items()
        if tag not in there and wanted in (plain := _plain(tag))
    ]
    return tuple(tag for *_, tag in sorted(found)[:_MAX_SUGGESTIONS])


def _plain(text: str) -> str:
    return text.strip().lower().replace("_", " ")


def _places(pieces: list[str]) -> list[int]:
    return [place for place, piece in enumerate(pieces) if piece.strip()]
