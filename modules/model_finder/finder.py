"""Finds the models on this machine: in the folders of other programs, in folders that the user has named, and in the
cache of Hugging Face.

Only headers are read, and nothing is unpickled. The search is bounded: a folder that is reached in several ways, by
links or in a circle, is read once.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.families.kinds.record import ModelType
from modules.families.kinds.registry import FILE_KINDS, kept_as, serves_as
from modules.families.registry import FAMILIES, published_model
from modules.formats.repository import index_file
from modules.model_finder.programs import BASE_MODELS, find_programs, identity_of, program_at
from modules.system.regular_files import size_of_file

SUFFIXES = (".safetensors", ".sft", ".ckpt", ".gguf")
HUB_CACHE = "Hugging Face"
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.")
_MAX_DEPTH = 8
_MAX_ENTRIES = 100_000
_MAX_MODELS = 3_000


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model on this machine: its file or folder, its name in a config, the program that keeps it, and what it is.

    `size_bytes` is 0 if it is not known.
    """

    path: Path
    name: str
    place: str
    kind: FileKind
    size_bytes: int

    @property
    def is_base_model(self) -> bool:
        """Whether a run can start from it, alone or, as a denoiser, with files of the other parts."""
        is_readable = not self.kind.problem and "code" not in self.kind.facts and "missing" not in self.kind.facts
        return is_readable and (self.kind.is_denoiser or (self.kind.is_model and serves_as(self.kind, "base model")))

    @property
    def is_part(self) -> bool:
        """Whether it is a VAE, a text encoder, an adapter or an embedding, and so not a model by itself."""
        is_of_model = kept_as(self.kind) not in (None, *BASE_MODELS) or serves_as(self.kind, "denoiser")
        return is_of_model and not self.is_base_model and not self.kind.is_whole

    @property
    def label(self) -> str:
        """The model's label, such as "Stable Diffusion XL"; empty for a model that is not known."""
        if self.kind.model:
            return f"{published_model(self.kind.model).label} {self.kind.variant}".strip()
        return FAMILIES[self.kind.family].label if self.kind.family in FAMILIES else ""

    @property
    def form(self) -> str:
        """The label of its contents, with the suffix of a file: "Checkpoint, .safetensors"."""
        what = FILE_KINDS[self.kind.kind].label
        if self.kind.is_denoiser:
            what = f"{FAMILIES[self.kind.family].denoiser.label} alone"
        return what if self.path.is_dir() else f"{what}, {self.path.suffix.lower()}"

    def fits(self, family: str) -> int:
        """Return how well it fits a model family, best first: 0 for a whole model, 1 for its denoiser alone.

        2 and 3 are the same of another family, 4 is for a file that is no base model.
        """
        if not self.is_base_model:
            return 4
        return (0 if self.kind.family == family else 2) + self.kind.is_denoiser


class ModelSearch:
    """A search, which a thread runs and another one can follow and stop.

    `folders` are those that the user has named, of programs or any others. `hub_cache` is the cache of huggingface_hub
    that runs use, if it is not the usual one: its models have the names of their repositories.
    """

    def __init__(self, types: Collection[ModelType], folders: Sequence[Path] = (), hub_cache: Path | None = None):
        self.found: list[FoundModel] = []
        self.unreadable: list[Path] = []
        self.is_cut = False  # by a stop, or by the bounds
        self._types = types
        self._folders = folders
        self._hub_cache = hub_cache
        self._is_stopped = False
        self._visited: set[tuple[int, int]] = set()
        self._num_entries = 0

    def stop(self) -> None:
        """Let the search end at the next file."""
        self._is_stopped = True

    def run(self, on_folder: Callable[[Path], object] = lambda _folder: None) -> None:
        """Search; `on_folder` is called with each folder that is read, and may raise to end the search."""
        for place, folder in self._places():
            for model in self._models_in(folder, place, on_folder, depth=0):
                self.found.append(model)  # one by one: another thread follows the list, and the bounds count it
            if self.is_cut:
                return
        # Imported here: the import takes a third of a second.
        from huggingface_hub import constants

        usual = Path(constants.HF_HUB_CACHE)
        used = self._hub_cache or usual
        for cache in dict.fromkeys((used, usual)):
            on_folder(cache)
            self._search_cache(cache, is_used=cache == used)

    def _places(self) -> Iterator[tuple[str, Path]]:
        """Yield the folders to read: the programs' folders, and the user's other ones."""
        for owner in find_programs(self._folders):
            for kind, folder in owner.model_folders():
                if kind in self._types:
                    yield owner.program.label, folder
        for folder in self._folders:
            if program_at(folder) is None:
                yield folder.name or str(folder), folder

    def _models_in(
        self, folder: Path, place: str, on_folder: Callable[[Path], object], *, depth: int
    ) -> Iterator[FoundModel]:
        on_folder(folder)
        identity = identity_of(folder)
        if identity is None or not self._is_new(identity):
            return
        if self._is_model(folder):
            yield FoundModel(folder, str(folder), place, identify(folder), self._size_of(folder))
            return
        for path, mode in self._entries(folder):
            if stat.S_ISDIR(mode) and depth < _MAX_DEPTH:
                yield from self._models_in(path, place, on_folder, depth=depth + 1)
            elif stat.S_ISREG(mode) and (model := self._model_at(path, place)) is not None:
                yield model
            if self.is_cut:
                return

    def _entries(self, folder: Path) -> Iterator[tuple[Path, int]]:
        """Yield the entries of a folder and their modes, links followed; hidden entries and dead links are left out."""
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except OSError:
            if folder not in self.unreadable:
                self.unreadable.append(folder)
            return
        for name in names:
            self._num_entries += 1
            if self._is_stopped or self._num_entries > _MAX_ENTRIES or len(self.found) >= _MAX_MODELS:
                self.is_cut = True
                return
            try:
                yield folder / name, (folder / name).stat().st_mode
            except (OSError, ValueError):
                continue

    def _model_at(self, path: Path, place: str) -> FoundModel | None:
        if path.suffix.lower() not in SUFFIXES or _SHARD.search(path.name):
            return None
        identity = identity_of(path)
        if identity is None or not self._is_new(identity):
            return None
        return FoundModel(path, str(path), place, identify(path), size_of_file(path))

    def _search_cache(self, cache: Path, *, is_used: bool) -> None:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound

        try:
            repositories = scan_cache_dir(cache).repos
        except (CacheNotFound, OSError, ValueError):
            return
        for repository in sorted(repositories, key=lambda r: r.repo_id):
            revisions = sorted(repository.revisions, key=lambda r: ("main" in r.refs, r.last_modified))
            if repository.repo_type != "model" or not revisions:
                continue
            newest = revisions[-1]
            if self._is_stopped or len(self.found) >= _MAX_MODELS:
                self.is_cut = True
                return
            if self._is_model(newest.snapshot_path):
                has_name = is_used and "main" in newest.refs
                name = repository.repo_id if has_name else str(newest.snapshot_path)
                kind = identify(newest.snapshot_path)
                self.found.append(FoundModel(newest.snapshot_path, name, HUB_CACHE, kind, newest.size_on_disk))
            else:
                for path, mode in self._entries(newest.snapshot_path):
                    if stat.S_ISREG(mode) and (model := self._model_at(path, HUB_CACHE)) is not None:
                        self.found.append(model)

    def _is_model(self, folder: Path) -> bool:
        """Return whether a folder is a model in diffusers' layout; an unreadable folder is added to `unreadable`."""
        try:
            return index_file(folder) is not None
        except OSError:
            self.unreadable.append(folder)
            return False

    def _size_of(self, folder: Path) -> int:
        """Return the size of the weights in a model's folder and in the folders of its parts."""
        total = 0
        for path, mode in list(self._entries(folder)):
            files = self._entries(path) if stat.S_ISDIR(mode) else iter([(path, mode)])
            total += sum(size_of_file(p) for p, m in files if stat.S_ISREG(m) and p.suffix in SUFFIXES)
        return total

    def _is_new(self, identity: tuple[int, int]) -> bool:
        is_new = identity not in self._visited
        self._visited.add(identity)
        return is_new


def rank_models(models: Sequence[FoundModel], family: str) -> list[FoundModel]:
    """Return models sorted by how well they fit a family (`FoundModel.fits`), then by name."""
    return sorted(models, key=lambda m: (m.fits(family), m.label, m.path.name.lower(), str(m.path)))
