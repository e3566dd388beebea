"""The records of captioners and maskers. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from modules.system.package import Package

CaptionSetting = Literal["threshold", "character_threshold", "excluded_tags", "keep_underscores", "initial", "detail"]
MaskSetting = Literal["prompts", "colour", "tolerance", "threshold"]

ONNX = Package("onnxruntime", extra="captioning")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # of a transformers model; the first one that a repository has


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The published files of a model: a repository at Hugging Face with some files, or one file at an address.

    `names` are required; of a transformers model, whose weights are in one of `weights`, the other text files come with
    them. `size_bytes` is approximate, 0 if it is not known. `md5` is that of the file at `url`.
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
    def words(self) -> str:
        """The place, the files and the size, in full."""
        names = ", ".join((*self.names, *self.weights[:1]))
        place = self.url or f"{self.repo} at Hugging Face"
        return f"{place} ({names}, {self.size_words})"

    @property
    def size_words(self) -> str:
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
