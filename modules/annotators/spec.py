"""The records of captioners and maskers, and finding their files on this computer; nothing is downloaded here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modules.formats.published_files import find_cached_file
from modules.system.factories import Package
from modules.system.paths import models_dir

CaptionSetting = Literal["threshold", "character_threshold", "exclude_tags", "keep_underscores", "initial", "detail"]
MaskSetting = Literal["prompts", "colour", "tolerance", "threshold"]

ONNX = Package("onnxruntime", extra="captioning")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # of a transformers model; the first one that a repository has


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The published files of a model: a repository at Hugging Face with some files, or one file at an address.

    `names` are required; of a transformers model, whose weights are in one of `weights`, the other text files come with
    them. `size_bytes` is approximate, 0 if it is not known. `md5` is the sum of the file at `url`.
    `revision` is the commit of the repository that is downloaded: a repository can change later.
    """

    repo: str
    names: tuple[str, ...]
    size_bytes: int = 0
    weights: tuple[str, ...] = ()
    url: str = ""
    md5: str = ""
    revision: str = ""

    @property
    def description(self) -> str:
        """The place, the files and the size, in full."""
        names = ", ".join((*self.names, *self.weights[:1]))
        place = self.url or f"{self.repo} at Hugging Face"
        return f"{place} ({names}, {self.size_text})"

    @property
    def size_text(self) -> str:
        """The size of the download as text."""
        if not self.size_bytes:
            return "size not known"
        return f"{self.size_bytes / 1e9:.1f} GB" if self.size_bytes >= 5e8 else f"{self.size_bytes / 1e6:.0f} MB"


@dataclass(frozen=True, slots=True)
class CaptionerSpec:
    """The facts about a captioner that are known before anything is loaded.

    `factory` names the function that builds it, as "module:function", called with the folder of its files (or its only
    file, of a model at an address), the `CaptionSettings` and the name of a device; it returns a `Captioner`.
    `settings` are those that it uses.
    """

    name: str
    label: str
    help: str
    factory: str
    files: ModelFiles
    licence: str
    settings: frozenset[CaptionSetting]
    packages: tuple[Package, ...] = ()


@dataclass(frozen=True, slots=True)
class MaskerSpec:
    """The facts about a masker that are known before anything is loaded.

    `factory` is called with the folder of its files (or its only file, or None without any), the `MaskSettings` and the
    name of a device; it returns a `Masker`.
    """

    name: str
    label: str
    help: str
    factory: str
    files: ModelFiles | None
    licence: str
    settings: frozenset[MaskSetting]
    packages: tuple[Package, ...] = ()


def find_place(files: ModelFiles, *, hub_cache_dir: str = "") -> Path | None:
    """Return the folder with the files of a model, or its only file, if all are on this computer.

    Only names are checked.
    """
    if files.url:
        file = models_dir() / files.names[0]
        return file if file.is_file() else None
    for revision in dict.fromkeys((files.revision, "")):  # also what was downloaded before
        places = [find_cached_file(files.repo, name, revision, hub_cache_dir=hub_cache_dir) for name in files.names]
        weights = [find_cached_file(files.repo, name, revision, hub_cache_dir=hub_cache_dir) for name in files.weights]
        if places and places[0] is not None and None not in places and (not weights or any(weights)):
            return places[0].parent
    return None
