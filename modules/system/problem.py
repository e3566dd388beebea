"""A problem found in a config: one value for the lists in the window, the CLI and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the field's dotted path (empty for the whole file), a sentence, and what to do.

    `remedy` is the name of what fixes it (`modules/system/remedies.py`); empty if only the field does.
    """

    path: str
    message: str
    severity: Severity = "error"
    advice: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the problem as JSON-safe data."""
        return asdict(self)

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message} {self.advice}".strip()


DEFAULT_USED = "the default is used instead"  # the default's value is added later (`modules/config/fitting.py`)
_SPELLED_WITH_AN = "AEFHILMNORSX"  # letters whose names begin with a vowel
_SAID_AS_WORDS = frozenset({"LORA"})
_PLURALS = {"is": "are", "has": "have", "was": "were", "does": "do"}
_AS_IN_FILES = {None: "null", True: "true", False: "false"}


def quote(value: object, *, max_chars: int = 60) -> str:
    """Return a value as messages quote it: Python's repr, but null, true and false as in JSON; truncated."""
    if value is None or isinstance(value, bool):
        return _AS_IN_FILES[value]
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print an integer of thousands of digits
        text = "a number of thousands of digits"
    return shorten(text, max_chars=max_chars)


def count(number: int, thing: str, plural: str = "") -> str:
    """Return a number with its unit: 1 step, 1,200 steps. `plural` is the plural of a unit such as batch, entry."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {plural or f'{thing}s'}"


def list_first(names: Sequence[str], most: int, *, separator: str = ", ") -> str:
    """Return the first names as a list, and how many more there are: a, b and 3 more."""
    more = len(names) - most
    before = "" if separator == ", " else separator.rstrip()
    return separator.join(names[:most]) + (f"{before} and {more:,} more" if more > 0 else "")


def agree(number: int, verb: str) -> str:
    """Return a verb in the singular for 1, and else in the plural: is or are, has or have, was or were."""
    return verb if number == 1 else _PLURALS.get(verb, verb.removesuffix("s"))


def about(seconds: float) -> str:
    """Return a rough duration in words, in one unit: 4 minutes, 2 hours, 1,200 days."""
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return count(round(seconds / size), unit)
    return "a minute" if seconds >= 45 else count(round(seconds), "second") if seconds >= 1.5 else "a second"


def format_size(size_bytes: float) -> str:
    """Return a size of bytes in its unit, of which a kB has 1,000: 812 B, 4.0 kB, 55 MB, 0.5 GB; 0 B below zero."""
    size = max(size_bytes, 0.0)
    units = ((1e3, "B", 1.0), (999.5e3, "kB", 1e3), (5e8, "MB", 1e6), (999.95e9, "GB", 1e9), (math.inf, "TB", 1e12))
    unit, amount = next((unit, amount) for below, unit, amount in units if size < below)
    has_fraction = unit in ("GB", "TB") or (unit != "B" and size < 9.95 * amount)
    return f"{size / amount:.{int(has_fraction)}f} {unit}"


def with_article(thing: str, *, capital: bool = False) -> str:
    """Return the name of a thing behind "a" or "an", as it is spoken: an OFT, an SDXL LoRA, a UNet, a LoRA."""
    word = thing.partition(" ")[0].partition("-")[0]
    is_spelled = len(word) > 1 and word.isalpha() and word.isupper() and word not in _SAID_AS_WORDS
    begins = _SPELLED_WITH_AN if is_spelled else "AEIOaeiou"
    article = "an" if thing[:1] in begins else "a"
    return f"{article.capitalize() if capital else article} {thing}"


def shorten(text: str, *, max_chars: int) -> str:
    """Return a text, truncated where it is too long for a message."""
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


def join_words(words: Sequence[str]) -> str:
    """Return "A, B and C"; a single word stays as it is."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def errors_in(problems: list[Problem]) -> list[Problem]:
    """Return the problems that prevent a start."""
    return [p for p in problems if p.severity == "error"]


def describe_data(num_images: int, num_prompts: int, num_pairs: int = 0) -> str:
    """Return the numbers as text, such as "12 images and 3 prompts"; `num_images` counts a pair as one image."""
    numbers = ((num_images - num_pairs, "image"), (num_pairs, "pair"), (num_prompts, "prompt"))
    return " and ".join(count(number, noun) for number, noun in numbers if number) or count(0, "image")
