"""The protocol of all exporters of a run's result, and the metadata that every file has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import torch

from modules.config.schema import Config
from modules.formats.safetensors_io import OnWritten
from trainer.export.metadata import embedded_config

Values = Mapping[str, torch.Tensor]
"""Trained weights, by full parameter name."""


@dataclass(frozen=True, slots=True)
class SaveMoment:
    """When a result is written: the time, and the step and the epoch of the run that the weights are from."""

    now: datetime
    step: int
    epoch: int


class Exporter(Protocol):
    """Writes the trained weights of a run."""

    @property
    def suffix(self) -> str:
        """The suffix of a save's name; empty for a folder."""
        ...

    def save(self, path: Path, values: Values, moment: SaveMoment, on_written: OnWritten | None = None) -> None:
        """Write the trained weights `values`, by full parameter name, in the config's format and dtype.

        Atomic: on any error an existing file or folder stays. Raises DarkroomError if a weight is not finite.
        `on_written(done, total)` gets the bytes after each tensor and may raise to end the write; no file is left then.
        """
        ...


def model_suffix(config: Config) -> str:
    """Return the suffix of a model's name: a single file, or empty for a folder."""
    return ".safetensors" if config.output.model_format == "single_file" else ""


def result_metadata(config: Config, moment: SaveMoment, thumbnail: Callable[[], str] = str) -> dict[str, str]:
    """Return the metadata of every result; without those that the run does not have.

    `thumbnail()` returns an image as a data URL, or an empty string; it is called if the config wants one.
    """
    metadata = {
        "darkroom_config": embedded_config(config),
        "ss_steps": str(moment.step),
        "ss_epoch": str(moment.epoch),
        "ss_num_epochs": str(config.training.epochs),
        "modelspec.trigger_phrase": config.output.trigger_words.strip(),
        "modelspec.thumbnail": thumbnail() if config.output.thumbnail else "",
    }
    return {key: text for key, text in metadata.items() if text}


def date_metadata(title: str, moment: SaveMoment) -> dict[str, str]:
    """Return title, date and program as metadata, for files without metadata of their kind (checkpoints, adapters)."""
    return {
        "modelspec.title": title,
        "modelspec.date": moment.now.isoformat(timespec="seconds"),
        "software": "Darkroom",
    }
