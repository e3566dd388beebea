"""Published files on this computer: missing ones are downloaded from Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from modules.formats.hub_snapshot import OnBytes, download_snapshot, failure_of
from modules.formats.published_files import FileRequest, find_file
from modules.system.errors import DarkroomError
from modules.system.secrets import HubAccess


@dataclass(frozen=True, slots=True)
class Downloads:
    """Where downloads go, and whether there are any. `on_bytes(done, total)` may raise to cancel one."""

    offline: bool = False
    hub_cache_dir: str = ""
    hub: HubAccess | None = field(default=None, repr=False)
    on_bytes: OnBytes | None = field(default=None, repr=False)


def local_file(wanted: FileRequest, downloads: Downloads, *, needed_by: str) -> Path:
    """Return the place of a file, or a folder, on this computer; a missing one is downloaded.

    Raises DarkroomError if it is missing and cannot be downloaded.
    """
    present = find_file(wanted, hub_cache_dir=downloads.hub_cache_dir)
    if present is not None:
        return present
    if downloads.offline:
        raise DarkroomError(
            f"{needed_by} needs {wanted.description}, which is not on this computer, and offline mode is on.",
            advice="Switch off offline mode, or download it yourself and enter its path in the settings.",
        )
    return _fetch(wanted, downloads, needed_by)


def _fetch(wanted: FileRequest, downloads: Downloads, needed_by: str) -> Path:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = download_snapshot(
            wanted.published.repo,
            revision=wanted.published.revision,
            allow_patterns=wanted.published.patterns,
            cache_dir=downloads.hub_cache_dir,
            hub=downloads.hub,
            on_bytes=downloads.on_bytes,
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        failure = failure_of(error)
        raise DarkroomError(
            f"{needed_by} needs {wanted.description}, which could not be downloaded: {failure.reason}.",
            advice=f"{failure.advice or 'Check the connection.'} Or download it yourself and enter its path in the "
            "settings.",
            remedy=failure.remedy,
        ) from error
    if missing := wanted.published.missing_in(folder):
        raise DarkroomError(
            f"The Hugging Face repository {wanted.published.repo} does not contain {missing}.",
            advice="Choose another repository, or leave the setting empty for the published one.",
        )
    return folder / wanted.published.name if wanted.published.name else folder
