"""Ending the training of a unit during a run, once its "stop after" point is reached."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.optim.param_groups import TrainGroup, freeze
from modules.settings.every import Moment


def freeze_finished_units(
    groups: Sequence[TrainGroup], optimizer: torch.optim.Optimizer, moment: Moment
) -> list[TrainGroup]:
    """Freeze each unit that has reached its stop and return those that were frozen now.

    It depends on the moment alone: a resumed run immediately freezes what the uninterrupted run had frozen by then.
    """
    over = [g for g in groups if g.is_training and g.stop_after.is_over(moment)]
    for group in over:
        freeze(group, optimizer)
    return over


def training_parts(groups: Sequence[TrainGroup]) -> tuple[str, ...]:
    """Return the names of the units that are still trained."""
    return tuple(g.name for g in groups if g.is_training)
