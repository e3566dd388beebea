r"""Weights in prompts: `(word:1.2)`, in A1111's syntax.

`(a)` weighs 1.1, `[a]` 1 / 1.1, `(a:1.5)` 1.5; within each other they multiply. `\(`, `\)`, `\[` and `\]` are plain
characters, and so is a bracket without its counterpart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_STEP = 1.1
_PIECES = re.compile(r"\\[()\[\]\\]|[()\[\]]|:\s*[+-]?(?:\d++\.?\d*+|\.\d++)\s*\)|[^\\()\[\]:]+|\\|:")
_CLOSES = {")": "(", "]": "["}


@dataclass(frozen=True, slots=True)
class WeightedText:
    """A piece of a prompt with one weight."""

    text: str
    weight: float


def weighted_texts(prompt: str) -> list[WeightedText]:
    """Return the pieces of a prompt with their weights, without the brackets; neighbours of one weight are one."""
    pieces: list[list[str | float]] = []
    opened: list[tuple[str, int]] = []  # each open bracket, and the index of the first piece inside
    for token in _PIECES.findall(prompt):
        if token in "([":
            opened.append((token, len(pieces)))
            pieces.append([token, 1.0])  # plain until it is closed
        elif token[0] == ":" and len(token) > 1 and opened and opened[-1][0] == "(":
            _close(pieces, opened.pop()[1], float(token[1:-1]))
        elif token in _CLOSES and opened and opened[-1][0] == _CLOSES[token]:
            _close(pieces, opened.pop()[1], _STEP if token == ")" else 1 / _STEP)
        else:
            pieces.append([token[1:] if token[0] == "\\" and len(token) > 1 else token, 1.0])
    return _merge(pieces)


def without_weights(prompt: str) -> str:
    """Return a prompt without the brackets and the numbers of its weights."""
    return "".join(piece.text for piece in weighted_texts(prompt))


def _close(pieces: list[list[str | float]], start: int, factor: float) -> None:
    pieces[start][0] = ""  # the open bracket
    for piece in pieces[start:]:
        piece[1] = float(piece[1]) * factor


def _merge(pieces: list[list[str | float]]) -> list[WeightedText]:
    merged: list[WeightedText] = []
    for text, weight in pieces:
        if merged and merged[-1].weight == weight:
            merged[-1] = WeightedText(f"{merged[-1].text}{text}", float(weight))
        elif text:
            merged.append(WeightedText(str(text), float(weight)))
    return merged
