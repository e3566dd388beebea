"""The text that a prompt puts in quotation marks, and how much of it was read in an image. Torch-free."""

from __future__ import annotations

import re

_QUOTED = re.compile('"([^"]+)"|\u201c([^\u201d]+)\u201d|\u201e([^\u201c]+)\u201c|\u00ab([^\u00bb]+)\u00bb')


def quoted_text(prompt: str) -> str:
    """Return the text within double quotation marks of a prompt, straight or typographic; several with spaces between.

    Empty if there is none: apostrophes are not quotation marks.
    """
    return " ".join("".join(groups).strip() for groups in _QUOTED.findall(prompt)).strip()


def text_score(wanted: str, read: str) -> float:
    """Return how completely a text was read: 1 - distance / length of the text, 0 to 1.

    The Levenshtein distance without spaces and capitals, as in Flow-GRPO (Liu et al. 2025); 1 where the text is part of
    what was read.
    """
    wanted, read = (re.sub(r"\s", "", text).casefold() for text in (wanted, read))
    if not wanted or wanted in read:
        return 1.0
    return 1.0 - min(edit_distance(wanted, read), len(wanted)) / len(wanted)


def edit_distance(one: str, other: str) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and replacements of single characters."""
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]
