"""A blind vote between checkpoints: in each round their images of one prompt, in random order, without their names."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.system.problem import count
from ui.features.checkpoints.model import CheckpointTable, Row

FEWEST, MOST = 2, 4


@dataclass(frozen=True, slots=True)
class Round:
    """A prompt, and the images of all rows for it: `order` has the row of each image."""

    prompt: str
    images: tuple[Path, ...]
    order: tuple[int, ...]


class BlindVote:
    """The rounds of a vote and the answers so far."""

    def __init__(self, table: CheckpointTable, rows: Sequence[Row], strength: float, *, seed: int) -> None:
        """`seed` decides the order of the rounds, and of the images in each."""
        self.rows = tuple(rows)
        self.rounds = _rounds(table, rows, strength, random.Random(seed))
        self._answers: list[int | None] = []  # the row of each round; None for a tie or a skipped round
        self._is_tie: list[bool] = []

    @property
    def round(self) -> Round | None:
        """The round to answer now; None after the last one."""
        number = len(self._answers)
        return self.rounds[number] if number < len(self.rounds) else None

    @property
    def following(self) -> Round | None:
        """The round after it, whose images can be loaded ahead."""
        number = len(self._answers) + 1
        return self.rounds[number] if number < len(self.rounds) else None

    @property
    def can_undo(self) -> bool:
        """Whether there is an answer to take back."""
        return bool(self._answers)

    @property
    def tally(self) -> str:
        """How far the vote is, without the names."""
        votes = sum(answer is not None for answer in self._answers)
        ties = sum(self._is_tie)
        place = min(len(self._answers) + 1, len(self.rounds))
        return f"{place} of {len(self.rounds)}: {count(votes, 'vote')}, {count(ties, 'tie')}"

    @property
    def votes(self) -> dict[Row, int]:
        """The votes for each row, the most first."""
        counts = Counter(answer for answer in self._answers if answer is not None)
        ordered = sorted(range(len(self.rows)), key=lambda n: -counts[n])
        return {self.rows[n]: counts[n] for n in ordered}

    @property
    def winner(self) -> Row | None:
        """The row with the most votes; None without a single one."""
        (first, most), (_, second), *_ = self.votes.items()
        return first if most > second else None

    def pick(self, number: int) -> None:
        """Choose an image of the round as the best."""
        if self.round is not None and number in range(len(self.round.images)):
            self._answer(self.round.order[number], is_tie=False)

    def tie(self) -> None:
        """Answer that no image is better."""
        self._answer(None, is_tie=True)

    def skip(self) -> None:
        """Leave the round out."""
        self._answer(None, is_tie=False)

    def undo(self) -> None:
        """Take back the last answer."""
        if self._answers:
            self._answers.pop()
            self._is_tie.pop()

    def _answer(self, row: int | None, *, is_tie: bool) -> None:
        if self.round is not None:
            self._answers.append(row)
            self._is_tie.append(is_tie)


def _rounds(
    table: CheckpointTable, rows: Sequence[Row], strength: float, generator: random.Random
) -> tuple[Round, ...]:
    """Return a round for each column of which all rows have an image."""
    rounds = []
    for column in table.columns:
        images = [table.image(row, column, strength) for row in rows]
        present = [image for image in images if image is not None]
        if len(present) == len(rows):
            order = generator.sample(range(len(rows)), len(rows))
            rounds.append(Round(column.prompt, tuple(present[n] for n in order), tuple(order)))
    generator.shuffle(rounds)
    return tuple(rounds)
