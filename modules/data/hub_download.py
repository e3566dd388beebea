"""Downloading a data set of the Hugging Face hub: only images, captions and archives, never code."""

from __future__ import annotations

from pathlib import Path

from modules.data.hub import HubDataset
from modules.data.scan import READ_SUFFIXES
from modules.formats.diffusers_folder import OnBytes, byte_progress_bar
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.secrets import WHERE_TO_ENTER, HubAccess


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
