"""The operations on a caption, composed in one order; wildcards are expanded first."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from modules.data.captions.settings import CaptionChoice
from modules.data.captions.tags import (
    ANY_TAG,
    CAPITALIZATIONS,
    Capitalization,
    DropMode,
    SpecialTags,
    capitalize_tags,
    drop_tags,
    join_tags,
    shuffle_tags,
    split_tags,
)

# Wildcards: `{red|blue} car` stands for one of its options.
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
    for match in _BRACES.finditer(text):
        num_open += {"{": 1, "}": -1}.get(match[0], 0)
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
    while (match := _INNERMOST.search(text, position)) is not None:
        option = generator.choice(re.split(r"(?<!\\)\|", match[1]))
        position = _last_open(text, match.start())
        text = text[: match.start()] + option + text[match.end() :]
    return _ESCAPED.sub(r"\1", text)


def _last_open(text: str, end: int) -> int:
    """Return the place of the last brace before `end` that may open a wildcard; `end` without one.

    No wildcard before it can be complete: that brace would be inside.
    """
    position = text.rfind("{", 0, end)
    while position > 0 and text[position - 1] == "\\":
        position = text.rfind("{", 0, position)
    return position if position >= 0 else end


ORDER = (
    "wildcards",
    "replacements",
    "tag dropout",
    "capitalization",
    "shuffling",
    "trigger word",
    "prefix and suffix",
)
"""The order in which a caption is changed. A caption that caption dropout drops is empty: nothing is added to it."""

_CLINGS = tuple(".,;:!?)")


@dataclass(frozen=True, slots=True)
class CaptionRules:
    """The rules by which the captions of a concept are chosen and changed; the defaults change nothing.

    `variations` is the number of variants of each caption when they are cached; `seed` replaces the run's for the
    operations. A probability of None switches an operation off.
    """

    choice: CaptionChoice = "random"
    variations: int = 1
    seed: int | None = None
    wildcards: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    delimiter: str = ","
    keep_count: int = 1
    separator: str = ""
    group_separator: str = ""
    drop_mode: DropMode = "full"
    drop_probability: float | None = None
    special: SpecialTags = ANY_TAG
    capitalizations: tuple[Capitalization, ...] = CAPITALIZATIONS
    capitalization_probability: float | None = None
    lowercase_first: bool = False
    shuffle: bool = False
    trigger_word: str = ""
    prefix: str = ""
    suffix: str = ""
    is_plain: bool = field(init=False, compare=False, repr=False)
    """Whether no operation is on, so that every caption stays as it is. It is asked for each image."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_plain", self._is_plain())

    @property
    def changes_tags(self) -> bool:
        """Whether a caption is split into tags and joined again."""
        is_changed = self.drop_probability is not None or self.capitalization_probability is not None
        return is_changed or self.shuffle

    def _is_plain(self) -> bool:
        is_marked = self.separator or self.group_separator or self.replacements
        is_longer = self.trigger_word or self.prefix or self.suffix
        return not (self.wildcards or is_marked or is_longer or self.changes_tags)

    def is_random(self, text: str) -> bool:
        """Return whether the final text of a caption depends on the generator."""
        has_tags = self.shuffle or bool(self.drop_probability) or bool(self.capitalization_probability)
        return has_tags or (self.wildcards and has_wildcards(text))


NO_CHANGES = CaptionRules()


def final_text(text: str, rules: CaptionRules, generator: random.Random) -> str:
    """Return a caption after all operations, in the order of `ORDER`; a function of its arguments only."""
    if rules.is_plain:
        return text
    given = text
    if rules.wildcards:
        text = resolve_wildcards(text, generator)
    for old, new in rules.replacements:
        text = new.join(re.split(rf"(?<!\w){re.escape(old)}(?!\w)", text))
    is_replaced = text != given
    if rules.changes_tags or (rules.separator and rules.separator in text):
        text = _with_changed_tags(text, rules, generator)
    if rules.group_separator:
        pieces = (piece.strip() for piece in text.split(rules.group_separator))
        text = _join(pieces, rules.delimiter)
    if is_replaced:
        text = _without_empty_tags(text, rules.delimiter)
    if rules.trigger_word and not _contains(text, rules.trigger_word):
        text = _join((rules.trigger_word, text), rules.delimiter)
    return _with_affixes(rules.prefix, text, rules.suffix)


def _with_changed_tags(text: str, rules: CaptionRules, generator: random.Random) -> str:
    def is_trigger(tag: str) -> bool:
        return bool(rules.trigger_word) and _contains(tag, rules.trigger_word)

    tags = split_tags(text, delimiter=rules.delimiter, keep_count=rules.keep_count, separator=rules.separator)
    if rules.drop_probability is not None:
        tags = drop_tags(
            tags,
            rules.drop_mode,
            rules.drop_probability,
            generator,
            may_be_dropped=lambda tag: rules.special.may_be_dropped(tag) and not is_trigger(tag),
        )
    if rules.capitalization_probability is not None:
        tags = capitalize_tags(
            tags,
            rules.capitalizations,
            rules.capitalization_probability,
            generator,
            lowercase_first=rules.lowercase_first,
            is_fixed=is_trigger,
        )
    if rules.shuffle:
        tags = shuffle_tags(tags, generator)
    return join_tags(tags, delimiter=rules.delimiter)


def _join(pieces: Iterable[str], delimiter: str) -> str:
    return f"{delimiter.strip()} ".join(filter(None, pieces))


def _without_empty_tags(text: str, delimiter: str) -> str:
    """Return a text without the empty tags that an empty replacement or wildcard option left, otherwise unchanged."""
    pieces = text.split(delimiter) if delimiter else [text]
    kept = [piece for piece in pieces if piece.strip()]
    return text if len(kept) == len(pieces) else delimiter.join(kept).strip()


def _contains(text: str, word: str) -> bool:
    """Return whether a text contains a word or a phrase, not merely as a part of a longer word."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def _with_affixes(prefix: str, text: str, suffix: str) -> str:
    """Return a text between a prefix and a suffix, with spaces; none before a punctuation mark."""
    result = ""
    for part in (prefix.strip(), text, suffix.strip()):
        joint = "" if not result or part.startswith(_CLINGS) else " "
        result = f"{result}{joint}{part}" if part else result
    return result
