"""The file that lists the parts of a model in diffusers' folder layout."""

from __future__ import annotations

from pathlib import Path

INDEX = "model_index.json"
MODULAR_INDEX = "modular_model_index.json"
INDEX_FILES = (INDEX, MODULAR_INDEX)
"""The names of the file: that of diffusers' pipelines, and that of its modular ones."""


def index_file(folder: Path) -> Path | None:
    """Return the file that lists the parts of a model's folder; None where it has none."""
    return next((folder / name for name in INDEX_FILES if (folder / name).is_file()), None)
