"""Downloading a data set of the Hugging Face hub: only images, captions and archives, never code."""

from __future__ import annotations

from pathlib import Path

from modules.data.hub import HubDataset
from modules.data.scan import READ_SUFFIXES
from modules.formats.hub_snapshot import OnBytes, download_snapshot, failure_of
from modules.system.errors import DarkroomError
from modules.system.secrets import WHERE_TO_ENTER, HubAccess


def download(dataset: HubDataset, *, cache_dir: str, hub: HubAccess, on_bytes: OnBytes) -> Path:
    """Return the folder of a data set, after downloading the files that are missing there.

    An empty `cache_dir` is huggingface_hub's own. `hub` holds the access token; `on_bytes(done, total)` is called
    several times a second, from several threads, and may raise to cancel. A later download keeps complete files. Raises
    DarkroomError where the data set does not exist, or cannot be downloaded and is not there already.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    inside = f"{dataset.folder}/" if dataset.folder else ""
    try:
        snapshot = download_snapshot(
            dataset.name,
            repo_type="dataset",
            revision=dataset.revision,
            allow_patterns=[f"{inside}*{s}" for suffix in sorted(READ_SUFFIXES) for s in (suffix, suffix.upper())],
            cache_dir=cache_dir,
            hub=hub,
            on_bytes=on_bytes,
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        failure = failure_of(error)
        advice = (
            f"Check its name and the connection. If it is gated or private, accept its terms at "
            f"huggingface.co/datasets/{dataset.name} and enter a token with access to it: {WHERE_TO_ENTER}."
        )
        raise DarkroomError(
            f"The data set {dataset.name} could not be downloaded from Hugging Face: {failure.reason}. "
            f"The request used {hub.description}.",
            advice=failure.advice if failure.advice and failure.remedy != "tokens" else advice,
            remedy=failure.remedy,
        ) from error
    folder = snapshot / dataset.folder
    if not folder.is_dir():
        within = f" in its folder {dataset.folder}" if dataset.folder else ""
        raise DarkroomError(
            f"The data set {dataset.name} has no images and no archives with images{within}.",
            advice=f"Look at its files at huggingface.co/datasets/{dataset.name}.",
        )
    return folder
