"""The placement of a run's model: its parts, and copies of its trained weights as they were at some point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from modules.families.protocol import ModelFamily
from modules.memory.checkpointing import offloaded_weights
from modules.memory.frozen_copy import FrozenCopy
from modules.memory.placement import Placement
from modules.optim.param_groups import TrainGroup
from trainer import phases
from trainer.run.machine import Machine


def placement_of(
    family: ModelFamily,
    facts: phases.PhaseFacts,
    machine: Machine,
    may_stay: Mapping[str, frozenset[str]] | None = None,
) -> Placement:
    """Return the placement that moves the parts of a model between devices as the phase changes.

    `may_stay` has the parts for which the device has room, by phase.
    """
    return Placement(
        _read_parts(family),
        train_device=machine.train_device,
        temp_device=machine.temp_device,
        needed_in=lambda phase: phases.needed_parts(phase, family.spec, facts),
        may_stay=may_stay,
        guard=machine.guard,
    )


def _read_parts(family: ModelFamily) -> dict[str, nn.Module]:
    """Return the parts whose weights were read; there is nothing to move of the others."""
    modules = {name: part.module for name, part in family.parts.items()}
    return {name: m for name, m in modules.items() if not any(p.is_meta for p in m.parameters())}


def placed_copy(family: ModelFamily, groups: Sequence[TrainGroup], placement: Placement, *, name: str) -> FrozenCopy:
    """Return a copy of the trained weights as they are now, which is offloaded except in training.

    The copies of offloaded weights always are. `name` is that of the copy among the parts of the placement.
    """
    offloaded = _offloaded_ids(family)
    copy = FrozenCopy(weight for group in groups for weight in group.parameters.values())
    resident = (c for weight, c in zip(copy.weights, copy.copies, strict=True) if id(weight) not in offloaded)
    placement.add(name, nn.ParameterList(resident), phases=(phases.TRAIN,))
    return copy


def _offloaded_ids(family: ModelFamily) -> set[int]:
    """Return the ids of the weights that stay on the offload device."""
    return {id(weight) for part in family.parts.values() for weight in offloaded_weights(part.module)}
