"""Finding the files of a captioner or masker on this computer. Torch-free; nothing is downloaded here."""

from __future__ import annotations

from pathlib import Path

from modules.annotators.spec import ModelFiles
from modules.formats.published_files import cached_file
from modules.system.paths import models_dir


def found_place(files: ModelFiles, *, hub_cache_dir: str = "") -> Path | None:
    """Return the folder with the files of a model, or its only file, if all are on this computer.

    Only names are checked.
    """
    if files.url:
        file = models_dir() / files.names[0]
        return file if file.is_file() else None
    for revision in dict.fromkeys((files.revision, "")):  # also what was downloaded before
        places = [cached_file(files.repo, name, revision, hub_cache_dir=hub_cache_dir) for name in files.names]
        weights = [cached_file(files.repo, name, revision, hub_cache_dir=hub_cache_dir) for name in files.weights]
        if places and places[0] is not None and None not in places and (not weights or any(weights)):
            return places[0].parent
    return None
