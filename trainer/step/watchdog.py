"""The watchdog: every trained parameter must be updated within its first steps, or the run stops.

A parameter is updated if it gets a gradient that is finite and not zero, and its value changes. A step does not count
if there is a reason for no update: a learning rate of zero, a loss of exactly zero (an empty mask, a weight of zero),
or a method that declares a zero gradient legal and there is no gradient. For an embedding, neither does a step without
a gradient: its captions may not be in the batch.

Its strictness depends on which cases can be correct. A parameter that never gets a gradient is disconnected from the
loss, and one is enough to stop: groups contain only parameters that a gradient can reach (`Part.reaches`). A zero
gradient can be correct: a key's bias in attention has one, attention over a single position, and a new LoRA's down
matrix while its up matrix is zero or rounded to zero. So can a lost update: the weights of a norm are all about one,
and the first steps of a long warm-up vanish in rounding. The run stops if these are more than half of a unit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from modules.optim.param_groups import TrainGroup, optimizer_parameters
from modules.system.errors import DarkroomError

FIRST_STEPS = 10

_MAX_SAMPLED = 1 << 20  # the sum of a weight's bits needs eight bytes for each value it reads
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

logger = logging.getLogger("darkroom.run")


@dataclass(eq=False)
class _WatchedUnit:
    """The state of a unit with parameters that have not been updated yet.

    `unproven` are their names, by the id of the tensor that the optimizer updates. Of these, `with_gradient` had a
    gradient at all and `with_nonzero_gradient` one that is not zero. `pilot` is a parameter that has been updated: it
    shows whether a step has a gradient.
    """

    group: TrainGroup
    unproven: dict[int, str]
    with_gradient: set[str] = field(default_factory=set)
    with_nonzero_gradient: set[str] = field(default_factory=set)
    pilot: int | None = None
    has_gradient: bool = False
    num_idle: int = 0


@dataclass(frozen=True, eq=False)
class _Snapshot:
    """Parameters right before an update: whether each has a usable gradient, and the sum of its bits; all shape ()."""

    parameters: Sequence[nn.Parameter]
    has_gradient: Sequence[torch.Tensor]
    sums: Sequence[torch.Tensor]


class Watchdog:
    """Observes each parameter until it has been updated; from then on it costs nothing.

    It keeps no copy of a weight, and synchronizes with the device once per update of some parameters.
    """

    def __init__(self, groups: Sequence[TrainGroup]) -> None:
        self._watched = {
            g.name: _WatchedUnit(g, {id(p): n for n, p in optimizer_parameters([g]).items() if g.parameters[n].numel()})
            for g in groups
        }
        self._before: dict[str, _Snapshot] = {}

    @property
    def is_watching(self) -> bool:
        """Whether there are parameters that have not been updated yet."""
        return bool(self._watched)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters that have not been updated yet, by unit and name, as JSON-safe data."""
        return {
            unit: {
                "unproven": sorted(watched.unproven.values()),
                "with_gradient": sorted(watched.with_gradient),
                "with_nonzero_gradient": sorted(watched.with_nonzero_gradient),
                "num_idle": watched.num_idle,
            }
            for unit, watched in self._watched.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state: what was updated before a backup is not checked again, and idle steps continue to count."""
        for unit, watched in list(self._watched.items()):
            if unit not in state:
                del self._watched[unit]
                continue
            stored, unproven = state[unit], set(state[unit]["unproven"])
            proven = [key for key, name in watched.unproven.items() if name not in unproven]
            watched.unproven = {key: name for key, name in watched.unproven.items() if name in unproven}
            watched.with_gradient = set(stored["with_gradient"])
            watched.with_nonzero_gradient = set(stored["with_nonzero_gradient"])
            watched.num_idle = stored["num_idle"]
            watched.pilot = next(iter(proven), None)
            if not watched.unproven:
                del self._watched[unit]

    def before_update(self, unit: str, parameters: Sequence[nn.Parameter]) -> None:
        """Called before some weights of a unit are updated, with their gradients set; records the unproven ones."""
        watched = self._watched.get(unit)
        if watched is None:
            return
        observed = [p for p in parameters if id(p) in watched.unproven or id(p) == watched.pilot]
        observed = [p for p in observed if p.grad is not None and p.grad.numel()]
        if observed:
            self._before[unit] = _Snapshot(
                observed, [_is_usable(p.grad) for p in observed], [_sum_of_bits(p) for p in observed]
            )

    def after_update(self, unit: str) -> None:
        """Called after the update; stops observing updated parameters, and the unit once all are updated."""
        snapshot = self._before.pop(unit, None)
        if snapshot is None:
            return
        watched = self._watched[unit]
        moved = [before != _sum_of_bits(p) for p, before in zip(snapshot.parameters, snapshot.sums, strict=True)]
        flags = _read([*snapshot.has_gradient, *moved])
        pairs = zip(flags[: len(moved)], flags[len(moved) :], strict=True)
        for parameter, (has_gradient, has_moved) in zip(snapshot.parameters, pairs, strict=True):
            watched.has_gradient |= has_gradient
            name = watched.unproven.get(id(parameter))
            if name is None:
                continue
            watched.with_gradient.add(name)
            if has_gradient:
                watched.with_nonzero_gradient.add(name)
            if has_gradient and has_moved:
                watched.pilot = watched.pilot or id(parameter)
                del watched.unproven[id(parameter)]
        if not watched.unproven:
            del self._watched[unit]

    def check(self, learning_rates: Mapping[str, float], *, may_be_zero: bool) -> None:
        """Called after a step; counts it for units with parameters that have not been updated yet.

        Raises DarkroomError, naming the unit, if they were not updated within the first steps; the log names them.
        """
        for unit, watched in list(self._watched.items()):
            had_gradient, watched.has_gradient = watched.has_gradient, False
            if not watched.group.is_training:
                del self._watched[unit]
            elif learning_rates.get(unit) and (
                had_gradient or not (may_be_zero or not watched.group.is_in_every_batch)
            ):
                watched.num_idle += 1
                if watched.num_idle >= FIRST_STEPS:
                    _raise_if_untrained(watched)
                    del self._watched[unit]


def _is_usable(gradient: torch.Tensor | None) -> torch.Tensor:
    """Return whether a gradient is finite and not zero, of shape (), on its device."""
    assert gradient is not None
    largest: torch.Tensor = torch.linalg.vector_norm(gradient.detach(), math.inf)
    return largest.isfinite() & (largest > 0)


def _sum_of_bits(parameter: nn.Parameter) -> torch.Tensor:
    """Return the sum of a parameter's values read as integers, of shape (); a large one is sampled evenly.

    The smallest change of a single value changes it. Changes could cancel each other, but not ten times in a row.
    """
    values = parameter.detach().reshape(-1)[:: math.ceil(parameter.numel() / _MAX_SAMPLED)]
    return values.view(_BITS[values.dtype.itemsize]).sum(dtype=torch.int64)


def _read(flags: Sequence[torch.Tensor]) -> list[bool]:
    """Return flags of shape () as plain values, with one synchronization per device."""
    values = [False] * len(flags)
    for device in {f.device for f in flags}:
        places = [i for i, f in enumerate(flags) if f.device == device]
        for place, value in zip(places, torch.stack([flags[i] for i in places]).tolist(), strict=True):
            values[place] = value
    return values


def _raise_if_untrained(watched: _WatchedUnit) -> None:
    """Raise DarkroomError if more parameters were not updated than a healthy unit may have."""
    unit, total = watched.group.label or watched.group.name, len(watched.group.parameters)
    unproven = list(watched.unproven.values())
    missing = [n for n in unproven if n not in watched.with_gradient]
    zero = [n for n in unproven if n not in watched.with_nonzero_gradient]
    unmoved = [n for n in unproven if n in watched.with_nonzero_gradient]
    if len(zero) == total:
        raise DarkroomError(
            f"{unit} is not being trained: it got no gradient in {FIRST_STEPS} steps.",
            advice="Switch off its training, choose other layers, or check the loss weights.",
        )
    if missing:
        raise DarkroomError(
            f"Part of {unit} is not being trained: {_share(missing, watched)} got no gradient in {FIRST_STEPS} steps.",
            advice="This is a bug in the program or in this version of torch. Please report it. The precision float32 "
            "may avoid it.",
        )
    if 2 * len(zero) > total:
        raise DarkroomError(
            f"Most of {unit} is not being trained: the gradient of {_share(zero, watched)} was zero in "
            f"{FIRST_STEPS} steps.",
            advice="Choose another precision (float16 rounds small gradients to zero), or check the loss weights.",
        )
    if unmoved and len(unproven) == total:
        raise DarkroomError(
            f"{unit} is not being trained: its weights did not change in {FIRST_STEPS} steps, although they had "
            "gradients.",
            advice="Raise its learning rate, or use float32 weights: updates this small are lost in rounding.",
        )
    if 2 * len(unmoved) > total:
        raise DarkroomError(
            f"Most of {unit} is not being trained: {_share(unmoved, watched)} did not change in {FIRST_STEPS} "
            "steps, although they had gradients.",
            advice="Raise its learning rate, or choose another optimizer.",
        )


def _share(names: Collection[str], watched: _WatchedUnit) -> str:
    """Return how many of a unit's parameters these are; their names are written to the log."""
    logger.error("Not trained: %s", ", ".join(sorted(names)))
    return f"{len(names)} of its {len(watched.group.parameters)} parameters"
