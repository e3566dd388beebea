"""Downloading the files of a captioner or masker. Only called when the user asked for it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from modules.annotators.registry import ModelFiles, find_place
from modules.formats.hub_snapshot import DownloadFailure, OnBytes, download_snapshot, failure_of
from modules.system.atomic import atomic_file
from modules.system.errors import DarkroomError
from modules.system.paths import models_dir
from modules.system.secrets import HubAccess

_CHUNK_BYTES = 1 << 20
_SECONDS = 30


def download_place(files: ModelFiles, *, hub: HubAccess, hub_cache_dir: str = "", on_bytes: OnBytes) -> Path:
    """Return the folder of a model's files, or its only file, after downloading missing files.

    `on_bytes(done, total)` is called several times a second, from several threads, and may raise to cancel. Raises
    DarkroomError if they cannot be downloaded.
    """
    present = find_place(files, hub_cache_dir=hub_cache_dir)
    if present is not None:
        return present
    if files.url:
        return _download_from_address(files, on_bytes)
    return _download_from_hub(files, hub, hub_cache_dir, on_bytes)


def _download_from_hub(files: ModelFiles, hub: HubAccess, hub_cache_dir: str, on_bytes: OnBytes) -> Path:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = [*files.names, *(("*.json", "*.txt") if files.weights else ())]
    for weights in files.weights or ("",):
        try:
            folder = download_snapshot(
                files.repo,
                revision=files.revision,
                allow_patterns=[*patterns, *([weights] if weights else [])],
                cache_dir=hub_cache_dir,
                hub=hub,
                on_bytes=on_bytes,
            )
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
            raise _failure(files, failure_of(error)) from error
        if all((folder / name).is_file() for name in (*files.names, *([weights] if weights else []))):
            return folder
    raise _failure(files, DownloadFailure("a file is missing in the repository"))


def _download_from_address(files: ModelFiles, on_bytes: OnBytes) -> Path:
    name = files.names[0]
    destination = models_dir() / name
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urlopen(files.url, timeout=_SECONDS) as source, atomic_file(destination) as temporary:
            total, done = float(source.headers.get("Content-Length") or files.size_bytes), 0
            with temporary.open("wb") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    on_bytes(done, total)
            if files.md5 and digest.hexdigest() != files.md5:
                reason = "the file that arrived is not the published one (its MD5 sum differs)"
                raise _failure(files, DownloadFailure(reason))
    except (URLError, OSError) as error:
        cause = getattr(error, "reason", None)
        raise _failure(files, failure_of(cause if isinstance(cause, Exception) else error)) from error
    return destination


def _failure(files: ModelFiles, failure: DownloadFailure) -> DarkroomError:
    where = files.url or f"the Hugging Face repository {files.repo}"
    return DarkroomError(
        f"{', '.join((*files.names, *files.weights[:1]))} of {where} could not be downloaded: {failure.reason}.",
        advice=failure.advice or "Check the connection and try again.",
        remedy=failure.remedy,
    )
