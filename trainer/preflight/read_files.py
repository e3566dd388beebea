"""The files that a run reads and that decide its result, apart from images: its models, adapters and code."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import method_of
from modules.data.cache.digests import DigestIndex
from modules.system.paths import from_root
from trainer.data.datasets import cache_folder
from trainer.preflight.model_files import downloaded_folder, kind_of, parts_with_files
from trainer.preflight.places import inputs_of_config
from trainer.run_folder.recipe import ReadFile

_BASE = "model.base_model"
_NOT_IN_RESULT = ("general.", "concepts", "sampling.", "model.hub_cache_dir", "quantization.cache_dir")
_OF_REWARDS = "reward."
_SUFFIXES = frozenset({".safetensors", ".gguf", ".ckpt", ".pt", ".bin", ".json", ".txt", ".model"})
_MAX_FILES = 2000  # of a folder
_NUM_BLOCKS, _BLOCK_BYTES = 256, 4096  # of a sample: of smaller files all is read


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that a run reads: its place on this machine, and its entry in a recipe."""

    setting: str
    name: str
    path: Path
    size_bytes: int
    mtime_ns: int

    @property
    def path_text(self) -> str:
        """The path as text."""
        return str(self.path)

    def recipe_entry(self, digest: str, sample: str = "") -> ReadFile:
        """Return the entry of this file in a recipe, with its digest and sample (empty if unknown)."""
        return ReadFile(self.setting, self.name, self.size_bytes, digest, sample)


def files_read_by(config: Config) -> list[FoundFile]:
    """Return the files that a run of a config reads and that decide its result, without its images.

    Those of a folder are its weights, configs and tokenizers; parts that have files of their own are left out. A
    repository is looked up among the downloads. Files that do not exist are left out.
    """
    files = list[FoundFile]()
    needs_rewards = method_of(config).needs_reward_models
    for _, setting, value in inputs_of_config(config):
        if setting.startswith(_NOT_IN_RESULT) or (setting.startswith(_OF_REWARDS) and not needs_rewards):
            continue
        place = from_root(value)
        if kind_of(place) == "" and setting == _BASE:
            place = downloaded_folder(config) or place
        elif ".py:" in value:  # a function of the user's code
            place = from_root(value.rpartition(":")[0])
        match kind_of(place):
            case "file":
                files += _found_file(setting, place.name, place)
            case "folder":
                without = parts_not_in_base(config) if setting == _BASE else frozenset[str]()
                for name, path in _in_folder(place, without):
                    files += _found_file(setting, name, path)
    return files


def parts_not_in_base(config: Config) -> frozenset[str]:
    """Return the parts that a run does not read from its base model's folder: they have own files, or are unused."""
    return parts_with_files(config) | {p.name for p in config.family.parts if not config.part(p.name).include}


def digests_of_files(config: Config, files: list[FoundFile], *, reads: bool) -> tuple[ReadFile, ...]:
    """Return the entries of files in a recipe; with `reads`, those whose digest is not known are read as a whole.

    Digests are kept by path, size and time next to the caches, so that a base model is read once. Files that cannot be
    read have neither digest nor sample.
    """
    index = DigestIndex(cache_folder(config))
    done = []
    for file, known in zip(files, index.known_digests(files), strict=True):
        try:
            digest = known or ""
            if not known and reads:
                digest = index.digest(file.path, size_bytes=file.size_bytes, mtime_ns=file.mtime_ns)
            done.append(file.recipe_entry(digest, _sample_of(file)))
        except OSError:
            done.append(file.recipe_entry(""))
    index.save()
    return tuple(done)


def _sample_of(file: FoundFile) -> str:
    """Return the digest of a file's size and of blocks at equal distances, which differ in any other training.

    Raises OSError.
    """
    digest = hashlib.blake2b(str(file.size_bytes).encode(), digest_size=20)
    distance = max(_BLOCK_BYTES, file.size_bytes // _NUM_BLOCKS)
    with file.path.open("rb", buffering=0) as content:
        for start in range(0, file.size_bytes, distance):
            content.seek(start)
            digest.update(content.read(_BLOCK_BYTES))
    return digest.hexdigest()


def _found_file(setting: str, name: str, path: Path) -> Iterator[FoundFile]:
    try:
        status = path.stat()
    except OSError:
        return
    yield FoundFile(setting, name, path, status.st_size, status.st_mtime_ns)


def _in_folder(folder: Path, without: frozenset[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of a model's folder by their path in it: configs at its top, and all in folders of parts."""
    num_files = 0
    for entry in _entries(folder):
        if entry.is_dir() and entry.name not in without:
            inside = [(f"{entry.name}/{file.name}", file) for file in _entries(entry) if file.is_file()]
        else:
            is_single = entry.suffix != ".json" and (folder / "model_index.json").is_file()
            inside = [] if is_single or not entry.is_file() else [(entry.name, entry)]
        for name, file in inside:
            if file.suffix in _SUFFIXES and num_files < _MAX_FILES:
                num_files += 1
                yield name, file


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if not entry.name.startswith("."))
    except OSError:
        return []
