"""Ending the training of a unit during a run, once its "stop after" point is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from modules.optim.param_groups import TrainGroup, exact_parameters, freeze
from modules.settings.every import Moment
from trainer.step.evaluation import has_evaluation_mode, optimizer_in_evaluation


def freeze_finished_units(
    groups: Sequence[TrainGroup], optimizer: torch.optim.Optimizer, moment: Moment
) -> list[TrainGroup]:
    """Freeze each unit that has reached its stop and return those that were frozen now.

    They keep the values that a save would have now. It depends on the moment alone: a resumed run freezes what the
    uninterrupted run had frozen by then, once its weights and its optimizer are restored.
    """
    over = [g for g in groups if g.is_training and g.stop_after.is_over(moment)]
    values = _evaluation_weights(over, groups, optimizer) if over and has_evaluation_mode(optimizer) else {}
    for group in over:
        freeze(group, optimizer)
    _set_weights(over, values)
    return over


def _evaluation_weights(
    some: Sequence[TrainGroup], groups: Sequence[TrainGroup], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Return copies of the exact weights of some units as an optimizer with an evaluation mode has them there."""
    with optimizer_in_evaluation(optimizer, groups):
        return {name: weight.detach().clone() for name, weight in exact_parameters(some).items()}


@torch.no_grad()
def _set_weights(groups: Sequence[TrainGroup], values: Mapping[str, torch.Tensor]) -> None:
    """Set the exact weights of units that are frozen, and their 16-bit copies."""
    weights = exact_parameters(groups)
    for name, value in values.items():
        weights[name].copy_(value)
    for group in groups:
        for master_weight in group.master_weights.values():
            master_weight.write_back()


def training_parts(groups: Sequence[TrainGroup]) -> tuple[str, ...]:
    """Return the names of the units that are still trained."""
    return tuple(g.name for g in groups if g.is_training)
