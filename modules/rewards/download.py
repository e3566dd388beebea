"""The files of rewards: local ones, or downloads from Hugging Face before the first step."""

from __future__ import annotations

from pathlib import Path

from modules.formats.diffusers_folder import byte_progress_bar
from modules.rewards.files import Wanted, found_file, wanted_files
from modules.rewards.protocol import RewardContext
from modules.rewards.settings import Scorer
from modules.system.errors import DarkroomError


def files_of(scorer: Scorer, context: RewardContext) -> dict[str, Path]:
    """Return the files, or folders, that a reward model needs, by the setting that can name them; missing ones are
    downloaded.

    Raises DarkroomError where one is missing and cannot be downloaded.
    """
    return {wanted.published.slot: _had(wanted, context) for wanted in wanted_files(scorer)}


def _had(wanted: Wanted, context: RewardContext) -> Path:
    found = found_file(wanted, hub_cache_dir=context.hub_cache_dir)
    if found is not None:
        return found
    if context.offline:
        raise DarkroomError(
            f"The reward needs {wanted.words}, which is not on this computer, and offline mode is on.",
            advice="Switch off offline mode, or download it yourself and enter its path as the reward model's file.",
        )
    return _fetched(wanted, context)


def _fetched(wanted: Wanted, context: RewardContext) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                wanted.published.repo,
                allow_patterns=list(wanted.published.names),
                cache_dir=context.hub_cache_dir or None,
                token=context.hub.token if context.hub is not None else None,
                tqdm_class=byte_progress_bar(context.on_bytes or (lambda done, total: None)),
            )
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        raise DarkroomError(
            f"The reward needs {wanted.words}, which could not be downloaded: {str(error).splitlines()[0]}",
            advice="Check the connection, or download it yourself and enter its path in the reward model's settings.",
        ) from error
    missing = [name for name in wanted.published.names if not (folder / name).is_file()]
    if missing:
        raise DarkroomError(
            f"The Hugging Face repository {wanted.published.repo} does not contain {missing[0]}.",
            advice="Choose another repository, or leave the setting empty for the published one.",
        )
    return folder / wanted.published.name if wanted.published.name else folder
