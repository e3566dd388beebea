"""Ending the training of a part in mid-run, when its time has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from modules.optim.param_groups import TrainGroup, freeze
from modules.settings.every import Every, Moment


def freeze_what_is_over(
    groups: Sequence[TrainGroup], stops: Mapping[str, Every], optimizer: torch.optim.Optimizer, moment: Moment
) -> list[str]:
    """Freeze each group whose span has passed and return the parts that were frozen now.

    A function of the moment alone: a resumed run freezes at once what the uninterrupted one had frozen by then.
    """
    over = [g for g in groups if g.is_training and stops[g.part].is_over(moment)]
    for group in over:
        freeze(group, optimizer)
    return [g.part for g in over]


def training_parts(groups: Sequence[TrainGroup]) -> tuple[str, ...]:
    """Return the parts that still learn."""
    return tuple(g.part for g in groups if g.is_training)
