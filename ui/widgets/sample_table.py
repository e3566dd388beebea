"""The samples of a run as a table, prompts by steps, and how two samples are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainer.events import ModelSaved, SampleReady

Place = tuple[int, int]  # row and column


@dataclass(frozen=True)
class SampleTable:
    """Rows are prompts, each followed by its samples without EMA; columns are the steps, in order."""

    samples: tuple[SampleReady, ...] = ()

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps of the columns."""
        return tuple(sorted({s.step for s in self.samples}))

    @cached_property
    def rows(self) -> tuple[tuple[int, bool], ...]:
        """The index of each row's prompt, and whether its samples are without EMA."""
        return tuple(sorted({(s.index, s.is_without_ema) for s in self.samples}))

    @cached_property
    def _by_place(self) -> Mapping[Place, SampleReady]:
        rows = {key: number for number, key in enumerate(self.rows)}
        columns = {step: number for number, step in enumerate(self.steps)}
        return {(rows[s.index, s.is_without_ema], columns[s.step]): s for s in self.samples}

    def at(self, row: int, column: int) -> SampleReady | None:
        """Return the sample of a prompt at a step; None where there is none."""
        return self._by_place.get((row, column))

    def place_of(self, sample: SampleReady) -> Place:
        """Return the row and the column of a sample."""
        return self.rows.index((sample.index, sample.is_without_ema)), self.steps.index(sample.step)

    def title(self, row: int) -> str:
        """Return the prompt of a row, as it was at its newest step."""
        found = next((s for c in range(len(self.steps) - 1, -1, -1) if (s := self.at(row, c))), None)
        if found is None:
            return ""
        return f"{found.prompt} (without EMA)" if found.is_without_ema else found.prompt

    def moved(self, place: Place, rows: int, columns: int) -> Place:
        """Return the place of the next sample in a direction, over gaps; the same place at the edge."""
        row, column = place
        while True:
            row, column = row + rows, column + columns
            if not (0 <= row < len(self.rows) and 0 <= column < len(self.steps)) or not (rows or columns):
                return place
            if self.at(row, column) is not None:
                return row, column

    def before(self, place: Place) -> Place:
        """Return the place of the sample that one is first compared with: the first of its prompt, or the next one."""
        first = next((c for c in range(len(self.steps)) if self.at(place[0], c) is not None), place[1])
        return (place[0], first) if first != place[1] else self.moved(place, 0, 1)


@dataclass(frozen=True, slots=True)
class Wipe:
    """Two images over each other, the left one up to a share of the width."""

    share: float = 0.5

    def at(self, x: float, left: float, width: float) -> Wipe:
        """Return the wipe with its edge at a point; `left` and `width` describe the images."""
        return Wipe(min(1.0, max(0.0, (x - left) / max(1.0, width))))

    def by(self, share: float) -> Wipe:
        """Return the wipe with its edge moved by a share of the width."""
        return Wipe(min(1.0, max(0.0, self.share + share)))


@dataclass(frozen=True, slots=True)
class StepModel:
    """What there is of the model after a step: its save, else its backup; both None if it can only be saved now."""

    step: int
    save: Path | None = None
    backup: Path | None = None


def model_of_step(step: int, saves: Sequence[ModelSaved], backups: Iterable[tuple[int, Path]]) -> StepModel:
    """Return the newest save or backup of a step; `saves` may have been replaced or deleted since, which is checked."""
    newest = {Path(save.path): save.step for save in saves}  # a best model replaces the one before
    found = [path for path, of_step in newest.items() if of_step == step and path.exists()]
    backup = next((path for of_step, path in backups if of_step == step), None)
    return StepModel(step, found[-1] if found else None, backup)
