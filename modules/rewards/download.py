"""The files of rewards: local ones, or downloads from Hugging Face before the first step."""

from __future__ import annotations

from pathlib import Path

from modules.formats.hub_files import Downloads, local_file
from modules.rewards.files import wanted_files
from modules.rewards.protocol import RewardContext
from modules.rewards.settings import Scorer


def files_of(scorer: Scorer, context: RewardContext) -> dict[str, Path]:
    """Return the files, or folders, that a reward model needs, by the setting that can name them; missing ones are
    downloaded.

    Raises DarkroomError where one is missing and cannot be downloaded.
    """
    downloads = Downloads(context.offline, context.hub_cache_dir, context.hub, context.on_bytes)
    return {w.published.slot: local_file(w, downloads, needed_by="The reward") for w in wanted_files(scorer)}
