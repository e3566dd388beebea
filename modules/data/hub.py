"""Data sets on the Hugging Face hub: how a concept names one, and where its files are once downloaded.

The form is from huggingface_hub's file system, `hf://datasets/owner/name`, also with a revision and a subfolder:
`hf://datasets/owner/name@v1/train`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

HUB_SCHEME = "hf://"
HUB_FORM = "hf://datasets/owner/name"
_DEFAULT_REVISION = "main"
_PARTS = re.compile(
    r"hf://datasets/(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w.-]+))?(/(?P<folder>.*))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A repository of a data set: its name, "owner/name", a revision, and a subfolder, which may be empty."""

    name: str
    revision: str = _DEFAULT_REVISION
    folder: str = ""

    @classmethod
    def of(cls, path: str) -> Self | None:
        """Return the data set that a concept's path names; None for any other path."""
        parts = _PARTS.fullmatch(path.strip())
        if parts is None:
            return None
        folder = PurePosixPath(parts["folder"] or "")
        if folder.is_absolute() or ".." in folder.parts:
            return None
        return cls(
            parts["name"], parts["revision"] or _DEFAULT_REVISION, "" if folder == PurePosixPath() else str(folder)
        )

    def local_folder(self, cache_dir: Path) -> Path | None:
        """Return the folder of its downloaded files in a cache of huggingface_hub; None if it is not downloaded."""
        repository = cache_dir / f"datasets--{self.name.replace('/', '--')}"
        try:
            commit = (repository / "refs" / self.revision).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):  # a commit itself has no reference
            commit = self.revision
        snapshot = repository / "snapshots" / commit
        return snapshot / self.folder if commit and snapshot.is_dir() else None
