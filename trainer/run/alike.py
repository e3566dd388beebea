"""Whether the processes of a run, which may be on several machines, train the same on the same images."""

from __future__ import annotations

import torch

from modules.config.compare import differing_paths
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from trainer.data.loader import Loader
from trainer.ranks import Ranks
from trainer.run.data import plan_fingerprint

_MAX_NAMED = 5


def require_equal_settings(ranks: Ranks, config: Config) -> None:
    """Raise DarkroomError in all processes if one has another config or another version of torch than the main one."""
    if ranks.rank.is_alone:
        return
    found = ranks.gathered((config, torch.__version__))
    of_main, version = found[0]
    for number, (other, other_version) in enumerate(found[1:], start=2):
        if other_version != version:
            raise DarkroomError(
                f"Process {number} of {len(found)} has torch {other_version}, the first one {version}.",
                advice="Install the same version of this program and of torch on all machines.",
            )
        if paths := differing_paths(of_main, other):
            more = f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else ""
            raise DarkroomError(
                f"Process {number} of {len(found)} has other settings than the first one: "
                f"{', '.join(paths[:_MAX_NAMED])}{more}.",
                advice="Start all processes with the same config; on several machines, copy the file.",
            )


def require_equal_images(ranks: Ranks, training: Loader, validation: Loader) -> None:
    """Raise DarkroomError in all processes if one finds other images, sizes or captions than the main one."""
    if ranks.rank.is_alone:
        return
    found = ranks.gathered((len(training.dataset.examples), plan_fingerprint(training), plan_fingerprint(validation)))
    for number, facts in enumerate(found[1:], start=2):
        if facts != found[0]:
            raise DarkroomError(
                f"Process {number} of {len(found)} finds other images or captions than the first one "
                f"({facts[0]} images to train on, the first one {found[0][0]}).",
                advice="All machines need the same files at the same paths. Copy the folders of the concepts again, or "
                "use a folder that all of them share.",
            )
