"""Finding the files of a captioner or masker on this computer. Torch-free; nothing is downloaded here."""

from __future__ import annotations

from pathlib import Path

from modules.annotators.spec import ModelFiles
from modules.system.paths import models_dir


def found_place(files: ModelFiles, *, hub_cache_dir: str = "") -> Path | None:
    """Return the folder with the files of a model, or its only file, if all are on this computer.

    Only names are checked.
    """
    if files.url:
        file = models_dir() / files.names[0]
        return file if file.is_file() else None
    from huggingface_hub import try_to_load_from_cache  # takes a third of a second to import

    def place_of(name: str) -> Path | None:
        place = try_to_load_from_cache(files.repo, name, cache_dir=hub_cache_dir or None)
        return Path(place) if isinstance(place, str) else None

    places = [place_of(name) for name in files.names]
    has_weights = not files.weights or any(place_of(name) for name in files.weights)
    if not has_weights or not places or None in places:
        return None
    return places[0].parent if places[0] is not None else None
