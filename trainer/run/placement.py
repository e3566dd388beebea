"""The placement of a run's parts and of copies of their weights, and freeing the card while the run is paused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from modules.families.protocol import ModelFamily
from modules.memory.checkpointing import offloaded_weights
from modules.memory.frozen_copy import FrozenCopy
from modules.memory.placement import Placement, free_cached_memory
from modules.optim.param_groups import TrainGroup
from modules.system.devices import Device, are_on, move
from trainer import phases
from trainer.events import Event, PhaseChanged
from trainer.run.machine import Machine
from trainer.step.stepper import Stepper

FREED = "the card's memory is free"


def placement_of(
    family: ModelFamily,
    facts: phases.PhaseFacts,
    machine: Machine,
    may_stay: Mapping[str, frozenset[str]] | None = None,
    read_again: Mapping[str, Callable[[], nn.Module]] | None = None,
) -> Placement:
    """Return the placement that moves the parts of a model between devices as the phase changes.

    `may_stay` has the parts for which the device has room, by phase; `read_again` reads parts that leave the memory. A
    part that guides samples may not have been read.
    """
    unread = frozenset(family.spec.names_of("guidance")) - _parts_with_weights(family).keys()
    return Placement(
        _parts_with_weights(family),
        train_device=machine.train_device,
        temp_device=machine.temp_device,
        needed_in=lambda phase: phases.needed_parts(phase, family.spec, facts) - unread,
        may_stay=may_stay,
        read_again=read_again,
        guard=machine.guard,
    )


def _parts_with_weights(family: ModelFamily) -> dict[str, nn.Module]:
    """Return the parts whose weights were read: the others have nothing to move."""
    modules = {name: part.module for name, part in family.parts.items()}
    return {name: m for name, m in modules.items() if not any(p.is_meta for p in m.parameters())}


def placed_copy(
    family: ModelFamily, groups: Sequence[TrainGroup], placement: Placement, *, name: str, phase: str = phases.TRAIN
) -> FrozenCopy:
    """Return a copy of the trained weights as they are now, which is offloaded except in a phase.

    Copies of offloaded weights always are. `name` identifies the copy among the parts of the placement.
    """
    offloaded = _offloaded_ids(family)
    copy = FrozenCopy(weight for group in groups for weight in group.parameters.values())
    resident = (c for weight, c in zip(copy.weights, copy.copies, strict=True) if id(weight) not in offloaded)
    placement.add(name, nn.ParameterList(resident), phases=(phase,))
    return copy


def _offloaded_ids(family: ModelFamily) -> set[int]:
    """Return the ids of the weights that stay on the offload device."""
    return {id(weight) for part in family.parts.values() for weight in offloaded_weights(part.module)}


@contextmanager
def freed_memory(
    placement: Placement,
    groups: Sequence[TrainGroup],
    stepper: Stepper,
    *,
    reward_modules: Sequence[nn.Module] = (),
    emit: Callable[[Event], None],
) -> Iterator[None]:
    """Offload parts, reward models, optimizer state, master weights, gradients and EMA weights within this context."""
    train_device, temp_device = placement.train_device, placement.temp_device
    with placement.parked():
        state = _state(groups, stepper, placement)
        waiting = [t for t, is_there in zip(state, are_on(state, train_device), strict=True) if is_there]
        _move_all(waiting, temp_device)
        _move_modules(reward_modules, temp_device)
        free_cached_memory(train_device)
        emit(PhaseChanged("paused", FREED))
        try:
            yield
        finally:
            _move_all(waiting, train_device)
            _move_modules(reward_modules, train_device)


def _state(groups: Sequence[TrainGroup], stepper: Stepper, placement: Placement) -> list[torch.Tensor]:
    """Return the tensors of a run outside its parts, each once. State of offloaded weights is not on the card."""
    offloaded = placement.offloaded_ids
    tensors = [
        *_tensors_in({p: state for p, state in stepper.optimizer.state.items() if id(p) not in offloaded}),
        *(m.master for g in groups for m in g.master_weights.values() if id(m.weight) not in offloaded),
        *(m.master.grad for g in groups for m in g.master_weights.values() if m.master.grad is not None),
        *(stepper.ema.averages.values() if stepper.ema is not None and stepper.ema.device == placement.train_device
          else ()),
    ]  # fmt: skip
    in_parts = {id(t) for t in placement.tensors()}
    return [t for t in {id(t): t for t in tensors}.values() if id(t) not in in_parts and t.dim()]


def _tensors_in(state: Mapping[Any, Any]) -> Iterator[torch.Tensor]:
    for value in state.values():
        match value:
            case torch.Tensor() if not getattr(value, "is_paged", False):  # paged state moves by itself
                yield value
            case dict():
                yield from _tensors_in(value)
            case list() | tuple():
                yield from _tensors_in(dict(enumerate(value)))
            case _:
                pass


def _move_modules(modules: Sequence[nn.Module], device: Device) -> None:
    for module in modules:
        module._apply(lambda tensor: move(tensor, device))


def _move_all(tensors: Sequence[torch.Tensor], device: Device) -> None:
    for tensor in tensors:
        tensor.data = move(tensor.data, device)
