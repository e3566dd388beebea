"""Ending the training of a unit in mid-run, when its time has come."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.optim.param_groups import TrainGroup, freeze
from modules.settings.every import Moment


def freeze_what_is_over(
    groups: Sequence[TrainGroup], optimizer: torch.optim.Optimizer, moment: Moment
) -> list[TrainGroup]:
    """Freeze each unit whose span has passed and return those that were frozen now.

    A function of the moment alone: a resumed run freezes at once what the uninterrupted one had frozen by then.
    """
    over = [g for g in groups if g.is_training and g.stop_after.is_over(moment)]
    for group in over:
        freeze(group, optimizer)
    return over


def training_parts(groups: Sequence[TrainGroup]) -> tuple[str, ...]:
    """Return the names of the units that still train."""
    return tuple(g.name for g in groups if g.is_training)
