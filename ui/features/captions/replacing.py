"""Changes of all captions of a data set: find and replace with a preview of each change and one undo for all, and a
phrase, such as a trigger word, at the beginning or the end of every caption.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modules.data.captions.caption_file import read_caption_file, with_text
from modules.system.atomic import write_bytes
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class Search:
    """The text to find and its replacement; with `is_regex`, \\1 stands for the first group."""

    find: str
    replacement: str = ""
    is_regex: bool = False
    matches_case: bool = False
    whole_tags: bool = False

    def pattern(self) -> re.Pattern[str]:
        """Return the regular expression. Raises DarkroomError for one that is not valid."""
        body = self.find if self.is_regex else re.escape(self.find)
        if self.whole_tags:
            body = rf"(?:(?<=,)|(?<=, )|^)(?:{body})(?=[ \t]*(?:,|$))"
        try:
            return re.compile(body, re.MULTILINE | (re.NOFLAG if self.matches_case else re.IGNORECASE))
        except re.error as error:
            message = f"{self.find!r} is not a valid regular expression: {error}."
            raise DarkroomError(message, advice="Correct it, or switch off regular expressions.") from error

    def replace(self, pattern: re.Pattern[str], text: str) -> tuple[str, int]:
        """Return a text with all replacements, and their number. Raises DarkroomError for an unknown group."""
        if not self.is_regex:
            return pattern.subn(lambda _match: self.replacement, text)
        try:
            return pattern.subn(self.replacement, text)
        except (re.error, IndexError) as error:
            message = f"{self.replacement!r} cannot be used as the replacement: {error}."
            raise DarkroomError(message, advice="Write \\1 for the first group and \\\\ for a backslash.") from error


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one caption file."""

    path: Path
    before: str
    after: str
    num_matches: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was changed: its content before and after; None if there was no file."""

    path: Path
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The files that were written, and those that were not, each with the reason."""

    written: tuple[WrittenFile, ...]
    left: tuple[tuple[Path, str], ...] = ()


def changes(search: Search, texts: Mapping[Path, str]) -> tuple[Change, ...]:
    """Return the changes that a search would make to caption files, given by their texts. Raises DarkroomError."""
    if not search.find:
        return ()
    pattern = search.pattern()
    result = []
    for path, text in texts.items():
        after, number = search.replace(pattern, text)
        if after != text:
            result.append(Change(path, text, after, number))
    return tuple(result)


def apply(changes: Sequence[Change]) -> Outcome:
    """Write changes. A file that has changed since the preview, or cannot be written, is left alone."""
    written, skipped = [], []
    for change in changes:
        try:
            file = read_caption_file(change.path)
            if file.text != change.before or not file.is_editable:
                skipped.append((change.path, "it has changed since the preview"))
                continue
            after = with_text(file, change.after)
            write_bytes(Path(os.path.realpath(change.path)), after)
            written.append(WrittenFile(change.path, file.content, after))
        except OSError as error:
            skipped.append((change.path, error.strerror or str(error)))
    return Outcome(tuple(written), tuple(skipped))


def undo(written: Sequence[WrittenFile]) -> Outcome:
    """Restore the files that `apply` wrote. One that was changed since is left alone."""
    restored, skipped = [], []
    for item in written:
        try:
            if read_caption_file(item.path).content != item.after:
                skipped.append((item.path, "it has changed since the replacement"))
                continue
            if item.before is None:
                item.path.unlink()
            else:
                write_bytes(Path(os.path.realpath(item.path)), item.before)
            restored.append(WrittenFile(item.path, item.after, item.before))
        except OSError as error:
            skipped.append((item.path, error.strerror or str(error)))
    return Outcome(tuple(restored), tuple(skipped))


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
    result = []
    for path, before in texts.items():
        lines = before.split("\n")  # an empty file gets the phrase; an empty line among others stays
        change = _CHANGES[place]
        after = "\n".join(change(line, phrase) if line.strip() or not before.strip() else line for line in lines)
        if after != before:
            result.append(Change(path, before, after, 1))
    return tuple(result)


def _begins(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"^\s*{re.escape(phrase)}\s*(?:,\s*|$)", re.IGNORECASE)


def _ends(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|,)\s*{re.escape(phrase)}\s*,?\s*$", re.IGNORECASE)
