"""Finds the files of a reward: the user's own, or published ones in the download cache. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.rewards.spec import RewardFile
from modules.system.errors import DarkroomError
from modules.system.paths import from_root


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file, or a folder, that a reward model needs: the published one, and the user's own where one is set."""

    published: RewardFile
    own: Path | None

    @property
    def words(self) -> str:
        """Its names and its repository, as part of a sentence."""
        names = " and ".join(self.published.names)
        return f"{names} of {self.published.repo} at Hugging Face"


def wanted_files(scorer: Scorer) -> Iterator[Wanted]:
    """Yield the files of a reward model. A repository named in the settings replaces the published one."""
    for published in REWARDS[scorer.kind].files:
        given = str(getattr(scorer, published.slot)).strip()
        path = from_root(given)
        if given and is_repository(given) and not path.exists():
            yield Wanted(replace(published, repo=given), None)
        else:
            yield Wanted(published, path if given else None)


def is_repository(name: str) -> bool:
    """Return whether a name has the form "owner/name" of a repository rather than that of a file."""
    owner, _, rest = name.partition("/")
    is_file = Path(rest).suffix in {".pth", ".pt", ".safetensors", ".bin", ".ckpt"}
    return bool(owner.strip(".~") and rest) and not {"/", "\\", ":"} & set(rest + owner) and not is_file


def found_file(wanted: Wanted, *, hub_cache_dir: str) -> Path | None:
    """Return the file, or the folder, where it is on this computer, else None. Only names are checked.

    Raises DarkroomError where the user's own is missing or of the wrong form.
    """
    if wanted.own is not None:
        return _checked(wanted.own, wanted.published)
    # Imported here: the import takes a third of a second, which runs with local files can save.
    from huggingface_hub import try_to_load_from_cache

    paths = [
        try_to_load_from_cache(wanted.published.repo, name, cache_dir=hub_cache_dir or None)
        for name in wanted.published.names
    ]
    if not all(isinstance(path, str) for path in paths):
        return None
    last = Path(str(paths[-1]))
    return last if wanted.published.name else last.parent


def _checked(own: Path, published: RewardFile) -> Path:
    if published.name:
        if not own.is_file():
            raise DarkroomError(f"The file {own} does not exist.", advice=_instead(published))
        return own
    missing = [name for name in published.names if not (own / name).is_file()]
    if missing:
        raise DarkroomError(
            f"The folder {own} is not a CLIP model in transformers' layout: {missing[0]} is missing.",
            advice=_instead(published),
        )
    return own


def _instead(published: RewardFile) -> str:
    return f"Correct the path, or leave it empty for the published one ({published.repo} at Hugging Face)."
