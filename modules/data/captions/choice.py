"""The choice of one of the captions of an image."""

from __future__ import annotations

import random
from typing import Literal

CaptionChoice = Literal["random", "in_turn", "first"]


def choose_line(num_lines: int, choice: CaptionChoice, generator: random.Random, *, use: int) -> int:
    """Return the index of a caption for one use of an image; `use` counts its uses in the run, from 0.

    "in_turn" goes through all captions before one is used again. There must be at least one.
    """
    match choice:
        case "first":
            return 0
        case "in_turn":
            return use % num_lines
        case _:
            return generator.choice(range(num_lines))


def lines_in_use(num_lines: int, choice: CaptionChoice) -> range:
    """Return the indices of the captions that may be chosen."""
    return range(min(num_lines, 1) if choice == "first" else num_lines)
