"""Ending the training of a part during a run, once its "stop after" point is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from modules.optim.param_groups import TrainGroup, freeze
from modules.settings.every import Every, Moment


def freeze_finished_parts(
    groups: Sequence[TrainGroup], stops: Mapping[str, Every], optimizer: torch.optim.Optimizer, moment: Moment
) -> list[str]:
    """Freeze each group that has reached its stop and return the parts that were frozen now.

    It depends on the moment alone: a resumed run immediately freezes what the uninterrupted run had frozen by then.
    """
    over = [g for g in groups if g.is_training and stops[g.part].is_over(moment)]
    for group in over:
        freeze(group, optimizer)
    return [g.part for g in over]


def training_parts(groups: Sequence[TrainGroup]) -> tuple[str, ...]:
    """Return the parts that are still trained."""
    return tuple(g.part for g in groups if g.is_training)
