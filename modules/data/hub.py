"""Data sets on the Hugging Face hub: how a concept names one, where its files are once downloaded, and downloading
them: only images, captions and archives, never code.

The form is from huggingface_hub's file system, `hf://datasets/owner/name`, also with a revision and a subfolder:
`hf://datasets/owner/name@v1/train`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from modules.data.scan import READ_SUFFIXES
from modules.formats.diffusers_folder import OnBytes, byte_progress_bar
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.secrets import WHERE_TO_ENTER, HubAccess

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


def download(dataset: HubDataset, *, cache_dir: str, hub: HubAccess, on_bytes: OnBytes) -> Path:
    """Return the folder of a data set, after downloading the files that are missing there.

    An empty `cache_dir` is huggingface_hub's own. `hub` holds the access token; `on_bytes(done, total)` is called now
    and then, from several threads, and may raise to cancel. A later download resumes. Raises DarkroomError where the
    data set does not exist, or cannot be downloaded and is not there already.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    inside = f"{dataset.folder}/" if dataset.folder else ""
    try:
        snapshot = snapshot_download(
            dataset.name,
            repo_type="dataset",
            revision=dataset.revision,
            allow_patterns=[f"{inside}*{s}" for suffix in sorted(READ_SUFFIXES) for s in (suffix, suffix.upper())],
            cache_dir=cache_dir or None,
            token=hub.token,
            tqdm_class=byte_progress_bar(on_bytes),
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        raise DarkroomError(
            f"The data set {dataset.name} could not be downloaded from Hugging Face: {plain_reason(error)}. "
            f"The request used {hub.description}.",
            advice=f"Check its name and the connection. If it is gated or private, accept its terms at "
            f"huggingface.co/datasets/{dataset.name} and enter a token with access to it: {WHERE_TO_ENTER}.",
        ) from error
    folder = Path(snapshot) / dataset.folder
    if not folder.is_dir():
        within = f" in its folder {dataset.folder}" if dataset.folder else ""
        raise DarkroomError(
            f"The data set {dataset.name} has no images and no archives with images{within}.",
            advice=f"Look at its files at huggingface.co/datasets/{dataset.name}.",
        )
    return folder
