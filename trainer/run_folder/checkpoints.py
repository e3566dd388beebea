"""The comparison of a run's checkpoints in its folder: images of the same prompts by each of them, and their scores.

checkpoints/
  index.json                  what was compared, and the image of each checkpoint, prompt and strength
  images/<key>.png            named after all that an image depends on: none is sampled twice
  adapters/step-00000010-<key>.safetensors    adapters of backups, written for the comparison
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from modules.system.atomic import write_text
from trainer.run_folder.run_dir import stored_path

FOLDER, INDEX_FILE = "checkpoints", "index.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model of a run: its step (-1 if it is not known), and its kinds ("save", "best", "backup"...).

    `path` is its file or folder, `backup` the folder of the backup to sample where there is no file. `loss` is the
    validation loss of its step, or of the nearest step with one, `loss_step`.
    """

    name: str
    step: int
    kinds: tuple[str, ...]
    path: str = ""
    backup: str = ""
    is_adapter: bool = True
    loss: float | None = None
    loss_step: int | None = None

    @property
    def label(self) -> str:
        """Its step as text, or its name."""
        return f"Step {self.step:,}" if self.step >= 0 else self.name

    @property
    def loss_place(self) -> str:
        """The step of the validation loss in brackets, if it is another one."""
        return "" if self.loss_step in (None, self.step) else f" (step {self.loss_step:,})"

    @property
    def source(self) -> Path:
        """The file or folder that it is sampled from."""
        return Path(self.path or self.backup)


@dataclass(frozen=True, slots=True)
class Column:
    """A prompt with its seed."""

    prompt: str
    seed: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The image of a checkpoint for a column at a strength of its adapter; `image` is the name of its file."""

    checkpoint: str
    column: int
    strength: float
    image: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The checkpoints of a run side by side. `scores` are the scores of each image, by its name and their own.

    `notes` are sentences about what could not be measured.
    """

    run_dir: Path
    checkpoints: tuple[Checkpoint, ...] = ()
    columns: tuple[Column, ...] = ()
    strengths: tuple[float, ...] = (1.0,)
    cells: tuple[Cell, ...] = ()
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def image_of(self, checkpoint: str, column: int, strength: float) -> Path | None:
        """Return the image of a cell; None where there is none yet."""
        wanted = (checkpoint, column, strength)
        cell = next((c for c in self.cells if (c.checkpoint, c.column, c.strength) == wanted), None)
        return None if cell is None else images_dir(self.run_dir) / cell.image

    def means(self, checkpoint: str, strength: float) -> dict[str, float]:
        """Return the mean of each score over the images of a checkpoint at a strength."""
        images = [c.image for c in self.cells if (c.checkpoint, c.strength) == (checkpoint, strength)]
        values: dict[str, list[float]] = {}
        for image in images:
            for name, score in self.scores.get(image, {}).items():
                if math.isfinite(score):
                    values.setdefault(name, []).append(score)
        return {name: math.fsum(scores) / len(scores) for name, scores in values.items()}

    def with_cell(self, cell: Cell) -> Comparison:
        """Return the comparison with one more image."""
        return replace(self, cells=(*self.cells, cell))

    def with_notes(self, notes: Sequence[str]) -> Comparison:
        """Return the comparison with more notes, each once."""
        return replace(self, notes=tuple(dict.fromkeys([*self.notes, *notes])))

    def with_scores(self, image: str, scores: Mapping[str, float]) -> Comparison:
        """Return the comparison with more scores of an image."""
        return replace(self, scores={**self.scores, image: {**self.scores.get(image, {}), **scores}})


def images_dir(run_dir: Path) -> Path:
    """Return the folder of the images of a run's checkpoints."""
    return run_dir / FOLDER / "images"


def adapters_dir(run_dir: Path) -> Path:
    """Return the folder of the adapters that were written from backups of a run."""
    return run_dir / FOLDER / "adapters"


def read_comparison(run_dir: Path) -> Comparison | None:
    """Return the last comparison of a run's checkpoints, without images that are gone; None without a readable one."""
    try:
        data = json.loads((run_dir / FOLDER / INDEX_FILE).read_text(encoding="utf-8"))
        present = {path.name for path in images_dir(run_dir).glob("*.png")}
        cells = (Cell(str(c[0]), int(c[1]), float(c[2]), str(c[3])) for c in data["cells"])
        return Comparison(
            run_dir,
            tuple(_checkpoint(entry, run_dir) for entry in data["checkpoints"]),
            tuple(Column(str(c["prompt"]), int(c["seed"])) for c in data["columns"]),
            tuple(float(strength) for strength in data["strengths"]),
            tuple(cell for cell in cells if cell.image in present),
            {str(i): {str(n): float(s) for n, s in scores.items()} for i, scores in data["scores"].items()},
            tuple(map(str, data["notes"])),
        )
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None


def write_comparison(comparison: Comparison) -> Path:
    """Write a comparison into its run's folder, atomically, and return the file. Raises OSError."""
    run_dir = comparison.run_dir
    entries = [asdict(c) | {n: stored_path(getattr(c, n), run_dir) for n in _PATHS} for c in comparison.checkpoints]
    content = {
        "checkpoints": entries,
        "columns": [asdict(column) for column in comparison.columns],
        "strengths": comparison.strengths,
        "cells": [[c.checkpoint, c.column, c.strength, c.image] for c in comparison.cells],
        "scores": comparison.scores,
        "notes": comparison.notes,
    }
    path = run_dir / FOLDER / INDEX_FILE
    write_text(path, json.dumps(content, indent=1) + "\n")
    return path


def score_names(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the names of all scores in some comparisons, in the order in which they first occur."""
    return list(dict.fromkeys(n for c in comparisons for scores in c.scores.values() for n in scores))


_PATHS = ("path", "backup")


def _checkpoint(entry: Mapping[str, Any], run_dir: Path) -> Checkpoint:
    path, backup = (str(run_dir.absolute() / str(entry[name])) if entry[name] else "" for name in _PATHS)
    loss = entry["loss"]
    return Checkpoint(
        str(entry["name"]),
        int(entry["step"]),
        tuple(map(str, entry["kinds"])),
        path,
        backup,
        bool(entry["is_adapter"]),
        None if loss is None else float(loss),
        None if loss is None else int(entry["loss_step"]),
    )
