"""Downloads from the Hugging Face hub: their size, their progress, how they end at once, and why one has failed."""

from __future__ import annotations

import errno
import io
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.system.file_errors import is_disk_full, plain_reason
from modules.system.problem import format_size
from modules.system.secrets import WHERE_TO_ENTER, HubAccess
from modules.system.waiting import wait_for

OnBytes = Callable[[float, float], None]

_RECONNECT, _FREE_SPACE = "Check the connection and try again.", "Free some space and try again."
_KEPT = " Files that have arrived are kept."
_ENTER_TOKEN = (
    "The token may be invalid, or the repository gated: then accept its terms at huggingface.co. Enter a token with "
    f"access: {WHERE_TO_ENTER}."
)
_CHUNK_BYTES = 2**17
"""Of a file that huggingface_hub reads at once. With its 10 MB a stopped download continues for minutes on a slow
connection, and so does the process: Python waits for threads of a pool before it ends."""
_NO_ACCESS, _TOO_MANY_REQUESTS, _FAILURE_THERE = (401, 403), 429, 500


@dataclass(frozen=True, slots=True)
class DownloadFailure:
    """Why a download has failed, as the end of a sentence; an advice and a remedy, both empty if none is known."""

    reason: str
    advice: str = ""
    remedy: str = ""


def download_snapshot(
    name: str,
    *,
    allow_patterns: Sequence[str],
    ignore_patterns: Sequence[str] = (),
    revision: str = "",
    repo_type: str = "model",
    cache_dir: str = "",
    local_files_only: bool = False,
    hub: HubAccess | None = None,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Return the folder of a repository with the files of some patterns, after downloading those that are missing.

    `on_bytes(done, total)` is called several times a second, from several threads, also while nothing arrives; `total`
    is 0 until it is known. It may raise to end the download, which then returns at once. Files that are complete are
    kept for the next time. Raises what huggingface_hub does, and OSError if the connection breaks, or if the files are
    larger than the free space (`failure_of` explains either).
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import httpx

    token = (hub or HubAccess()).token
    options: dict[str, Any] = {"repo_type": repo_type, "allow_patterns": list(allow_patterns), "token": token}
    options |= {"revision": revision} if revision else {}
    options |= {"ignore_patterns": list(ignore_patterns)} if ignore_patterns else {}
    bytes_of = _Progress(on_bytes or (lambda done, total: None))

    def fetch() -> Path:
        constants.DOWNLOAD_CHUNK_SIZE = _CHUNK_BYTES
        if not local_files_only:
            bytes_of.expected = _bytes_to_download(name, cache_dir, options)
        return Path(
            snapshot_download(
                name,
                **options,
                cache_dir=cache_dir or None,
                local_files_only=local_files_only,
                tqdm_class=_progress_bar(bytes_of),
            )
        )

    try:
        if local_files_only:
            return fetch()
        # In a thread: nothing is reported while nothing arrives.
        return wait_for(fetch, check=bytes_of.report, cancel=_abort_transfers)
    except httpx.TransportError as error:  # not an OSError: what huggingface_hub raises after its last try
        raise ConnectionError("the connection broke") from error


def failure_of(error: Exception, *, keeps_files: bool = True) -> DownloadFailure:
    """Return why a download has failed, for an error of `download_snapshot`; or a question, which has no files."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from huggingface_hub.utils import httpx

    kept = _KEPT if keeps_files else ""
    if is_disk_full(error):
        reason = plain_reason(error) if isinstance(error, _NoRoomError) else "the disk is full"
        return DownloadFailure(reason, f"{_FREE_SPACE}{kept}", "space")
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
    if isinstance(cause, HfHubHTTPError):
        code = cause.response.status_code
        if code in _NO_ACCESS:
            return DownloadFailure(f"Hugging Face gives no access to it ({code})", _ENTER_TOKEN, "tokens")
        if code == _TOO_MANY_REQUESTS:
            return DownloadFailure(
                f"Hugging Face takes no more requests for now ({code})", "Try again in some minutes."
            )
        if code >= _FAILURE_THERE:
            return DownloadFailure(f"Hugging Face itself has a failure ({code})", "Try again later.")
    elif isinstance(error, LocalEntryNotFoundError | httpx.TransportError):
        return DownloadFailure("Hugging Face could not be reached", f"{_RECONNECT}{kept}")
    elif isinstance(error, ConnectionError | TimeoutError):
        return DownloadFailure(plain_reason(error), f"{_RECONNECT}{kept}")
    return DownloadFailure(plain_reason(error))


class _NoRoomError(OSError):
    """There is less free space than a download needs."""


class _Progress:
    """The bytes of a download. The first error of `on_bytes` ends all its threads."""

    def __init__(self, on_bytes: OnBytes) -> None:
        self.expected = 0.0
        self.error: BaseException | None = None
        self._on_bytes = on_bytes
        self._done = self._total = 0.0

    def note(self, done: float, total: float) -> None:
        """Keep the bytes of one bar: what has arrived, or what has been written."""
        self._done, self._total = max(self._done, done), max(self._total, total)
        self.report()

    def report(self) -> None:
        """Report the bytes again; raise if the download has to end."""
        if self.error is None:
            try:
                total = max(self._total, self.expected)
                self._on_bytes(min(self._done, total), total)
            except BaseException as error:  # noqa: BLE001 - raised again in every thread of the download
                self.error = error
        if self.error is not None:
            raise self.error


def _abort_transfers() -> None:
    """End what the library of Hugging Face's own storage transfers: it does not report errors of our progress bar."""
    with suppress(ImportError):
        from huggingface_hub.utils._xet import abort_xet_session

        abort_xet_session()


def _bytes_to_download(name: str, cache_dir: str, options: dict[str, Any]) -> float:
    """Return the size of the files that are missing here, 0 if it cannot be asked for. Raises OSError without room."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import filter_repo_objects, httpx

    known = {key: options.get(key) for key in ("repo_type", "revision", "token")}
    try:
        info = HfApi().repo_info(name, files_metadata=True, **known)
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError):
        return 0.0  # the download has the same trouble, and reports it
    files = {file.rfilename: file for file in info.siblings or ()}
    wanted = filter_repo_objects(
        files, allow_patterns=options["allow_patterns"], ignore_patterns=options.get("ignore_patterns")
    )
    folder = Path(cache_dir or constants.HF_HUB_CACHE)
    blobs = folder / repo_folder_name(repo_id=name, repo_type=options["repo_type"]) / "blobs"
    place = {"cache_dir": folder, "revision": info.sha, "repo_type": options["repo_type"]}

    def is_here(file: Any) -> bool:
        # A newer revision has links to the files of the former one that it did not change.
        content = file.lfs.sha256 if file.lfs else file.blob_id
        return isinstance(try_to_load_from_cache(name, file.rfilename, **place), str) or (
            bool(content) and (blobs / content).is_file()
        )

    missing = sum(file.size or 0 for file in map(files.__getitem__, wanted) if not is_here(file))
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if (free := shutil.disk_usage(nearest).free) < missing:
        reason = f"{format_size(missing)} are missing, and only {format_size(free)} are free in {folder}"
        raise _NoRoomError(errno.ENOSPC, reason)
    return float(missing)


def _progress_bar(progress: _Progress) -> type[Any]:
    """Return a progress bar class that displays nothing and notes the bytes of the whole download."""
    from tqdm import tqdm

    class ByteProgressBar(tqdm):  # type: ignore[misc]  # untyped library
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*arguments, **{**options, "disable": False, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> bool | None:
            result: bool | None = super().update(n)
            if self.unit == "B" and self.total:
                progress.note(float(self.n), float(self.total))
            return result

    return ByteProgressBar
