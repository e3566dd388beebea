"""Files that a run needs besides its model: the user's own, or published ones in the download cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import Problem, format_size, join_words

_WEIGHTS, _INDEX, _SHARDS = "model.safetensors", "model.safetensors.index.json", "model-*.safetensors"


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A published file that a run needs: its repository and its approximate size.

    `slot` is the setting that can name a replacement. `name` is the single file that is needed, or empty for a
    model in transformers' layout: its config.json, its weights, in model.safetensors or in several files with an index,
    and `further` files. `item_bytes` is the size of an element; `keeps_dtype`: it is not converted to float32.
    `revision` is the commit that is downloaded: a repository can change later; empty for the newest one. Without a
    repository the user has to name one, or a folder.
    """

    slot: str
    repo: str
    name: str
    size_bytes: int
    item_bytes: int = 4
    revision: str = ""
    further: tuple[str, ...] = ()
    keeps_dtype: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The files of the repository that are needed, the largest last."""
        return (self.name,) if self.name else ("config.json", *self.further, _WEIGHTS)

    @property
    def names_text(self) -> str:
        """The names as part of a sentence."""
        return join_words(self.names)

    @property
    def patterns(self) -> list[str]:
        """The names, or patterns of names, of the files to download."""
        return list(self.names) if self.name else [*self.names, _INDEX, _SHARDS]

    @property
    def loaded_bytes(self) -> int:
        """The memory it needs on the training device."""
        return self.size_bytes if self.keeps_dtype else self.size_bytes * 4 // self.item_bytes

    def missing_in(self, folder: Path) -> str:
        """Return the name of a file that a folder lacks; empty if it has all of them.

        Raises DarkroomError if the index of its weights is damaged, or names files that are not there.
        """
        missing = [name for name in self.names if not (folder / name).is_file()]
        if missing == [_WEIGHTS] and (folder / _INDEX).is_file():
            from modules.formats.headers import shards_of  # the window starts without the readers of files

            shards_of(folder / _INDEX)
            return ""
        return missing[0] if missing else ""

    @property
    def size_text(self) -> str:
        """The size of the download as text."""
        return format_size(self.size_bytes)


@dataclass(frozen=True, slots=True)
class FileRequest:
    """A file, or a folder, that a run needs: the published one, and the user's own if one is set."""

    published: PublishedFile
    user_path: Path | None

    @property
    def description(self) -> str:
        """Its names and its repository, as part of a sentence."""
        return f"{self.published.names_text} of {self.published.repo} at Hugging Face"

    @property
    def loaded_bytes(self) -> int:
        """The bytes that it needs on the training device.

        A file of the user's counts as much as the published one, or the size of its files if their dtype is kept.
        """
        path = self.user_path
        if path is None or not self.published.keeps_dtype or not path.exists():
            return self.published.loaded_bytes
        files = path.glob("*.safetensors") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)


def file_request(published: PublishedFile, given: str) -> FileRequest:
    """Return the request for a published file, or for the file or repository that a setting names instead."""
    given = given.strip()
    path = from_root(given)
    if given and is_repository(given) and not path.exists():
        return FileRequest(replace(published, repo=given, revision=""), None)
    return FileRequest(published, path if given else None)


def is_repository(name: str) -> bool:
    """Return whether a name has the form "owner/name" of a repository rather than of a file."""
    owner, _, rest = name.partition("/")
    is_file = Path(rest).suffix in {".pth", ".pt", ".safetensors", ".bin", ".ckpt"}
    return bool(owner.strip(".~") and rest) and not {"/", "\\", ":"} & set(rest + owner) and not is_file


def find_file(wanted: FileRequest, *, hub_cache_dir: str) -> Path | None:
    """Return the file, or the folder, if it is on this computer, else None. Only names are checked.

    Raises DarkroomError if the user's own file is missing or of the wrong form, or has to be named and is not.
    """
    if wanted.user_path is not None:
        return _check_file(wanted.user_path, wanted.published)
    published = wanted.published
    if not published.repo:
        raise DarkroomError(
            "No weights are named.",
            advice=f"Enter a folder, or a repository at Hugging Face, with {published.names_text}.",
        )
    for revision in dict.fromkeys((published.revision, "")):  # also what was downloaded before
        path = find_cached_file(published.repo, published.names[0], revision, hub_cache_dir=hub_cache_dir)
        if path is not None and (published.name or _is_whole(path.parent, published)):
            return path if published.name else path.parent
    return None


def _is_whole(folder: Path, published: PublishedFile) -> bool:
    """Return whether a download is complete: one that was stopped may lack some of its files."""
    try:
        return not published.missing_in(folder)
    except DarkroomError:
        return False


def find_cached_file(repo: str, name: str, revision: str, *, hub_cache_dir: str) -> Path | None:
    """Return a file of a repository's revision in the download cache; empty for the newest one downloaded so far."""
    # Imported here: the import takes a third of a second, which runs with local files do not need.
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repo, name, revision=revision or None, cache_dir=hub_cache_dir or None)
    return Path(path) if isinstance(path, str) else None


def problem_of_file(
    where: str, wanted: FileRequest, *, needed_by: str, offline: bool, hub_cache_dir: str
) -> Problem | None:
    """Return an error for a missing file, an info for a coming download, and None for a file that is there.

    `where` is the path of the setting; `needed_by` is the start of the sentence, as "Aesthetic".
    """
    try:
        if find_file(wanted, hub_cache_dir=hub_cache_dir) is not None:
            return None
    except DarkroomError as error:
        return Problem(where, f"{needed_by}: {error.message}", advice=error.advice)
    needs = f"{needed_by} needs {wanted.description} (about {wanted.published.size_text})"
    if offline:
        return Problem(
            where,
            f"{needs}, which is not on this computer, and offline mode is on.",
            advice="Switch off offline mode, or download it yourself and enter its path here.",
        )
    return Problem(where, f"{needs}. It will be downloaded when the run starts.", "info")


def _check_file(path: Path, published: PublishedFile) -> Path:
    if published.name:
        if not path.is_file():
            raise DarkroomError(f"The file {path} does not exist.", advice=_instead(published))
        return path
    if missing := published.missing_in(path):
        raise DarkroomError(
            f"The folder {path} is not a model in transformers' layout: {missing} is missing.",
            advice=_instead(published),
        )
    return path


def _instead(published: PublishedFile) -> str:
    if not published.repo:
        return "Correct the path."
    return f"Correct the path, or leave it empty for the published one ({published.repo} at Hugging Face)."
