"""Wildcards in prompts: `{red|blue}` is one of its choices, `__colour__` a line of the file colour.txt.

The choice follows from a seed and its place in the prompt, so the same seed gives the same text. Choices and lines can
contain wildcards themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from modules.data.links import leads_out
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.seeds import derive_seed

_CHOICE = re.compile(r"\{([^{}|]*\|[^{}]*)\}")
_FILE = re.compile(r"__([A-Za-z0-9][\w ./-]*?)__")
_MAX_REPLACED = 200  # replacements in a prompt; a file that names itself would have no end
_MAX_FILE_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class ExpandedPrompt:
    """A prompt with its wildcards replaced, and the names of missing files, which stay as they are."""

    text: str
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draws:
    """The draws of one prompt, counted."""

    seed: int
    count: int = 0
    missing: list[str] = field(default_factory=list)

    def one_of(self, choices: list[str]) -> str:
        """Return the next draw. Raises DarkroomError after too many."""
        self.count += 1
        if self.count > _MAX_REPLACED:
            raise DarkroomError(
                f"A prompt has more than {_MAX_REPLACED} wildcards to replace.",
                advice="A wildcard file that contains its own name has no end: remove the name there.",
            )
        return choices[derive_seed(self.seed, "wildcard", self.count) % len(choices)]


def expand(text: str, *, seed: int, folder: Path | None = None) -> ExpandedPrompt:
    """Return a prompt with its wildcards replaced; `folder` holds the files, also in folders (`__animals/cat__`).

    Braces without a `|` and names without a file stay as they are. Raises DarkroomError for a file that cannot be read,
    and for wildcards without an end.
    """
    draws = _Draws(seed)

    def choice(match: re.Match[str]) -> str:
        return draws.one_of(match[1].split("|")).strip()

    def line(match: re.Match[str]) -> str:
        lines = _lines(folder, match[1])
        if not lines:
            draws.missing.append(match[1])
            return f"\0{match[1]}\0"
        return draws.one_of(lines)

    while True:
        before = draws.count
        text = _replace(_CHOICE, text, choice)
        text = _replace(_FILE, text, line)
        if draws.count == before:
            break
    return ExpandedPrompt(re.sub("\0([^\0]*)\0", r"__\1__", text), tuple(dict.fromkeys(draws.missing)))


def _replace(pattern: re.Pattern[str], text: str, by: Callable[[re.Match[str]], str]) -> str:
    return pattern.sub(by, text)


def _lines(folder: Path | None, name: str) -> list[str]:
    """Return the lines of a wildcard file, without empty ones and comments; no lines if the file does not exist.

    A link out of the folder does not count.
    """
    if folder is None or ".." in name.split("/"):
        return []
    path = folder / f"{name}.txt"
    try:
        if not path.is_file() or leads_out(path, folder):
            return []
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise DarkroomError(f"{path} is larger than any wildcard file.", advice="Choose another folder.")
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise DarkroomError(
            f"{path} cannot be read: {plain_reason(error)}.", advice="Close other programs that use it."
        ) from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
