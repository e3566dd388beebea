"""Operations on the tags of a caption, each a pure function of tags, settings and a generator."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from modules.system.patterns import compiled_pattern

DropMode = Literal["full", "random", "random_weighted"]
SpecialMode = Literal["none", "blacklist", "whitelist"]
Capitalization = Literal["capslock", "title", "first", "random"]
CAPITALIZATIONS: tuple[Capitalization, ...] = ("capslock", "title", "first", "random")


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of a caption: the ones kept at its start and at its end, and the free ones, which may be moved."""

    first: tuple[str, ...]
    free: tuple[str, ...]
    last: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Every tag, in order."""
        return self.first + self.free + self.last


@dataclass(frozen=True, slots=True)
class SpecialTags:
    """A list of tags: whether only they may be dropped (blacklist) or never (whitelist), and whether it is of regexes.

    Booru tags escape parentheses, `hat \\(blue\\)`: a regex is compared with and without these backslashes.
    """

    mode: SpecialMode = "none"
    tags: tuple[str, ...] = ()
    is_regex: bool = False

    def may_be_dropped(self, tag: str) -> bool:
        """Return whether tag dropout may drop a tag."""
        return self.mode == "none" or self._lists(tag) == (self.mode == "blacklist")

    def _lists(self, tag: str) -> bool:
        if not self.is_regex:
            return tag in self.tags
        plain = tag.replace("\\(", "(").replace("\\)", ")")
        return any(compiled_pattern(p).matches(form) for p in self.tags for form in dict.fromkeys((tag, plain)))


ANY_TAG = SpecialTags()


def split_tags(text: str, *, delimiter: str, keep_count: int, separator: str) -> Tags:
    """Return the tags of a caption, without the spaces around them; empty ones are left out.

    Where the caption contains `separator`, the tags before its first occurrence are kept at the start, and the tags
    after its second at the end (kohya's `keep_tokens_separator`); otherwise the first `keep_count` tags are kept.
    """
    if separator and separator in text:
        parts = [_split(part, delimiter) for part in text.split(separator, 2)]
        return Tags(*parts)
    tags = _split(text, delimiter)
    return Tags(tags[:keep_count], tags[keep_count:])


def join_tags(tags: Tags, *, delimiter: str) -> str:
    """Return the caption of tags: the delimiter and a space between each two."""
    return f"{delimiter.strip()} ".join(tags.all)


def drop_tags(
    tags: Tags,
    mode: DropMode,
    probability: float,
    generator: random.Random,
    *,
    may_be_dropped: Callable[[str], bool],
) -> Tags:
    """Return tags after tag dropout. Kept tags, and tags that may not be dropped, always stay.

    "full" drops all of them together with `probability`, "random" each independently. With "random_weighted" the
    probability grows linearly with the position among the free tags, up to `probability` for the last one.
    """
    if mode == "full":
        if generator.random() >= probability:
            return tags
        return replace(tags, free=tuple(t for t in tags.free if not may_be_dropped(t)))
    count = len(tags.free)
    share = [1.0 if mode == "random" else (i + 1) / count for i in range(count)]
    draws = [generator.random() for _ in tags.free]  # one for each tag, so that the list does not affect the others
    kept = (
        tag
        for tag, s, draw in zip(tags.free, share, draws, strict=True)
        if not may_be_dropped(tag) or draw >= s * probability
    )
    return replace(tags, free=tuple(kept))


def shuffle_tags(tags: Tags, generator: random.Random) -> Tags:
    """Return tags with the free ones in another order."""
    free = list(tags.free)
    generator.shuffle(free)
    return replace(tags, free=tuple(free))


def capitalize_tags(
    tags: Tags,
    modes: Sequence[Capitalization],
    probability: float,
    generator: random.Random,
    *,
    lowercase_first: bool,
    is_fixed: Callable[[str], bool],
) -> Tags:
    """Return tags with other capitals: each with `probability`, in one of the modes at random.

    With `lowercase_first` all become lowercase before. Tags for which `is_fixed` holds stay as they are.
    """

    def change(tag: str) -> str:
        if is_fixed(tag):
            return tag
        tag = tag.lower() if lowercase_first else tag
        if not modes or generator.random() >= probability:
            return tag
        return _capitalize(tag, generator.choice(modes), generator)

    return Tags(*(tuple(change(t) for t in part) for part in (tags.first, tags.free, tags.last)))


def _capitalize(tag: str, mode: Capitalization, generator: random.Random) -> str:
    match mode:
        case "capslock":
            return tag.upper()
        case "title":  # not str.title, which writes "Don'T"
            return re.sub(r"\S+", lambda word: word[0][:1].upper() + word[0][1:], tag)
        case "first":
            return tag[:1].upper() + tag[1:]
        case "random":
            return "".join(generator.choice((c.lower(), c.upper())) for c in tag)


def _split(text: str, delimiter: str) -> tuple[str, ...]:
    pieces = text.split(delimiter) if delimiter else [text]
    return tuple(tag for piece in pieces if (tag := piece.strip()))
