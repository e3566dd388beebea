"""The rules of a concept's captions, from its settings: reads their lists and checks their patterns and modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from modules.data.captions.operations import CaptionRules
from modules.data.captions.sources import read_text
from modules.data.captions.tags import CAPITALIZATIONS, SpecialTags
from modules.system.paths import from_root
from modules.system.patterns import fault_of_pattern
from modules.system.problem import quote

if TYPE_CHECKING:
    from modules.data.captions.settings import CaptionChanges

ARROW = "=>"
_LISTS = (".txt", ".csv")


def caption_rules(text: CaptionChanges, *, variations: int = 1, seed: int | None = None) -> CaptionRules:
    """Return the rules of a concept's caption settings, without the ones that `faults_of` reports."""
    return CaptionRules(
        choice=text.choice,
        variations=variations,
        seed=seed,
        wildcards=text.wildcards,
        replacements=replacements_of(text.replacements),
        delimiter=text.tag_delimiter,
        keep_count=text.keep_tags_count,
        separator=text.keep_tags_separator,
        group_separator=text.tag_group_separator,
        drop_mode=text.tag_dropout_mode,
        drop_probability=text.tag_dropout_probability if text.tag_dropout else None,
        special=_special_tags(text),
        capitalizations=tuple(mode for mode in CAPITALIZATIONS if mode in modes_of(text)),
        capitalization_probability=text.capitalization_probability if text.randomize_capitalization else None,
        lowercase_first=text.lowercase_first,
        shuffle=text.shuffle_tags,
        trigger_word=text.trigger_word.strip(),
        prefix=text.prefix,
        suffix=text.suffix,
    )


def faults_of(text: CaptionChanges) -> Iterator[tuple[str, str]]:
    """Yield the problems of caption settings: the field's name, and a sentence."""
    known = ", ".join(CAPITALIZATIONS)
    for mode in modes_of(text) if text.randomize_capitalization else ():
        if mode not in CAPITALIZATIONS:
            yield "capitalization_modes", f"{quote(mode)} is not a capitalization mode. Choose from {known}."
    for line in filter(None, map(str.strip, text.replacements.splitlines())):
        old, arrow, _ = line.partition(ARROW)
        if not (arrow and old.strip()):
            yield "replacements", f"The line {quote(line)} is not a replacement. Write: old {ARROW} new."
    yield from _faults_of_special_tags(text)


def _faults_of_special_tags(text: CaptionChanges) -> Iterator[tuple[str, str]]:
    if not text.tag_dropout or text.special_tags_mode == "none":
        return
    try:
        tags = _read_special_tags(text)
    except OSError as error:
        reason = error.strerror or error
        yield "special_tags", f"The list of special tags {text.special_tags} cannot be read ({reason})."
        return
    for tag in tags if text.special_tags_regex else ():
        if fault := fault_of_pattern(tag):
            yield "special_tags", f"{quote(tag)} is not a valid regular expression: {fault}."


def replacements_of(lines: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a text of lines such as `old => new`; other lines are left out."""
    pairs = (line.partition(ARROW) for line in lines.splitlines())
    return tuple((old.strip(), new.strip()) for old, arrow, new in pairs if arrow and old.strip())


def modes_of(text: CaptionChanges) -> tuple[str, ...]:
    """Return the capitalization modes as they are written."""
    return tuple(mode.strip().lower() for mode in text.capitalization_modes.split(",") if mode.strip())


def special_tags_file(text: CaptionChanges) -> Path | None:
    """Return the file of the special tags; None where they are written in the setting itself."""
    written = text.special_tags.strip()
    is_used = text.tag_dropout and text.special_tags_mode != "none"
    return from_root(written) if is_used and written.lower().endswith(_LISTS) else None


def _special_tags(text: CaptionChanges) -> SpecialTags:
    if not text.tag_dropout or text.special_tags_mode == "none":
        return SpecialTags()
    try:
        tags = _read_special_tags(text)
    except OSError:
        return SpecialTags()
    if text.special_tags_regex:
        tags = tuple(tag for tag in tags if not fault_of_pattern(tag))
    return SpecialTags(text.special_tags_mode, tags, text.special_tags_regex)


def _read_special_tags(text: CaptionChanges) -> tuple[str, ...]:
    """Return the special tags of the setting, or of its file, one on each line."""
    file = special_tags_file(text)
    if file is None:
        pieces = text.special_tags.split(text.tag_delimiter) if text.tag_delimiter else [text.special_tags]
    else:
        pieces = read_text(file)[0].splitlines()
    return tuple(tag for piece in pieces if (tag := piece.strip()))
