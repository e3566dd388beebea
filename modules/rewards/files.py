"""The files of a reward: the user's own, or published ones. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from modules.formats.published_files import Wanted, wanted_file
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer


def wanted_files(scorer: Scorer) -> Iterator[Wanted]:
    """Yield the files of a reward model. A repository named in the settings replaces the published one."""
    for published in REWARDS[scorer.kind].files:
        yield wanted_file(published, str(getattr(scorer, published.slot)))
