"""The watchdog: within its first steps every parameter that is trained must have learned, or the run stops.

To learn is to get a gradient that is finite and not zero, and to move by it. A step does not count where there is a
reason for nothing to happen: a learning rate of zero, a loss of exactly zero (an empty mask, a weight of zero), or a
method that says so while no gradient comes.

How strict it is depends on what can be right. A parameter at which no gradient ever arrives is cut off from the
loss, and one is enough: groups hold only what a gradient can reach (`Part.reaches`). A gradient of zero can be right:
that of a key's bias in attention, of attention over a single place, of a fresh LoRA's down matrix while its up matrix
is zero or rounded to it. So can an update that is lost: weights of a norm are all about one, and the first steps of a
long warm-up vanish in their rounding. Where these are more than half of a unit, the run stops.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from modules.optim.param_groups import TrainGroup, moved_parameters
from modules.system.errors import DarkroomError

FIRST_STEPS = 10

_MOST_NAMED = 3
_MOST_SAMPLED = 1 << 20  # the sum of a weight's bits takes eight bytes for each value it looks at
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(eq=False)
class _Watched:
    """What is known of a unit of which some parameters have not been seen to learn.

    `unproven` are their names, by the identity of what the optimizer moves. Of these, `arrived` had a gradient at all
    and `stirred` one that is not zero. `pilot` is a parameter that has learned: it shows whether a step has a gradient.
    """

    group: TrainGroup
    unproven: dict[int, str]
    arrived: set[str] = field(default_factory=set)
    stirred: set[str] = field(default_factory=set)
    pilot: int | None = None
    has_gradient: bool = False
    num_idle: int = 0


@dataclass(frozen=True, eq=False)
class _Look:
    """Parameters right before a move: whether each has a gradient to follow, and the sum of its bits; all shape ()."""

    parameters: Sequence[nn.Parameter]
    has_gradient: Sequence[torch.Tensor]
    sums: Sequence[torch.Tensor]


class Watchdog:
    """Looks at each parameter until it has been seen to learn; from then on it costs nothing.

    It keeps no copy of a weight, and waits for the device once for each move of some parameters.
    """

    def __init__(self, groups: Sequence[TrainGroup]) -> None:
        self._watched = {
            g.name: _Watched(g, {id(p): n for n, p in moved_parameters([g]).items() if g.parameters[n].numel()})
            for g in groups
        }
        self._before: dict[str, _Look] = {}

    def before_move(self, unit: str, parameters: Sequence[nn.Parameter]) -> None:
        """Before some weights of a unit move, with their gradients in place: look at those that are not proven."""
        watched = self._watched.get(unit)
        if watched is None:
            return
        looked = [p for p in parameters if id(p) in watched.unproven or id(p) == watched.pilot]
        looked = [p for p in looked if p.grad is not None and p.grad.numel()]
        if looked:
            self._before[unit] = _Look(looked, [_is_of_use(p.grad) for p in looked], [_sum_of_bits(p) for p in looked])

    def after_move(self, unit: str) -> None:
        """After they moved: let go of those that have learned, and of the unit once all have."""
        look = self._before.pop(unit, None)
        if look is None:
            return
        watched = self._watched[unit]
        moved = [before != _sum_of_bits(p) for p, before in zip(look.parameters, look.sums, strict=True)]
        flags = _read([*look.has_gradient, *moved])
        pairs = zip(flags[: len(moved)], flags[len(moved) :], strict=True)
        for parameter, (has_gradient, has_moved) in zip(look.parameters, pairs, strict=True):
            watched.has_gradient |= has_gradient
            name = watched.unproven.get(id(parameter))
            if name is None:
                continue
            watched.arrived.add(name)
            if has_gradient:
                watched.stirred.add(name)
            if has_gradient and has_moved:
                watched.pilot = watched.pilot or id(parameter)
                del watched.unproven[id(parameter)]
        if not watched.unproven:
            del self._watched[unit]

    def check(self, learning_rates: Mapping[str, float], *, may_be_zero: bool) -> None:
        """After a step: count it for the parts of which some parameters have not learned yet.

        Raises DarkroomError, naming the unit and what of it learned nothing, where one has had its steps.
        """
        for unit, watched in list(self._watched.items()):
            had_gradient, watched.has_gradient = watched.has_gradient, False
            if not watched.group.is_training:
                del self._watched[unit]
            elif learning_rates.get(unit) and (had_gradient or not may_be_zero):
                watched.num_idle += 1
                if watched.num_idle >= FIRST_STEPS:
                    _refuse(watched)
                    del self._watched[unit]


def _is_of_use(gradient: torch.Tensor | None) -> torch.Tensor:
    """Return whether a gradient is finite and not zero, of shape (), on its device."""
    assert gradient is not None
    largest: torch.Tensor = torch.linalg.vector_norm(gradient.detach(), math.inf)
    return largest.isfinite() & (largest > 0)


def _sum_of_bits(parameter: nn.Parameter) -> torch.Tensor:
    """Return the sum of a parameter's values read as integers, of shape (); of a large one that of evenly spread ones.

    The smallest step of a single value changes it. Steps that cancel each other do not, but not ten times in a row.
    """
    values = parameter.detach().reshape(-1)[:: math.ceil(parameter.numel() / _MOST_SAMPLED)]
    return values.view(_BITS[values.dtype.itemsize]).sum(dtype=torch.int64)


def _read(flags: Sequence[torch.Tensor]) -> list[bool]:
    """Return flags of shape () as plain values, with one wait for each device they are on."""
    values = [False] * len(flags)
    for device in {f.device for f in flags}:
        places = [i for i, f in enumerate(flags) if f.device == device]
        for place, value in zip(places, torch.stack([flags[i] for i in places]).tolist(), strict=True):
            values[place] = value
    return values


def _refuse(watched: _Watched) -> None:
    """Raise DarkroomError where what has not learned is more than a healthy unit may have."""
    unit, total = watched.group.name.replace("_", " "), len(watched.group.parameters)
    unproven = list(watched.unproven.values())
    missing = [n for n in unproven if n not in watched.arrived]
    silent = [n for n in unproven if n not in watched.stirred]
    unmoved = [n for n in unproven if n in watched.stirred]
    if len(silent) == total:
        raise DarkroomError(
            f"The {unit} does not learn: in {FIRST_STEPS} steps no gradient arrived at it.",
            advice="Switch its training off, choose other layers, or look at the weights of the loss.",
        )
    if missing:
        raise DarkroomError(
            f"Not all of the {unit} learns: in {FIRST_STEPS} steps no gradient arrived at {_share(missing, watched)}.",
            advice="This is a fault of the program or of this version of torch; please report it. The precision "
            "float32 may avoid it.",
        )
    if 2 * len(silent) > total:
        raise DarkroomError(
            f"Most of the {unit} does not learn: in {FIRST_STEPS} steps the gradient was zero at "
            f"{_share(silent, watched)}.",
            advice="Choose another precision (float16 rounds small gradients to zero), or look at the weights of the "
            "loss.",
        )
    if unmoved and len(unproven) == total:
        raise DarkroomError(
            f"The {unit} does not learn: in {FIRST_STEPS} steps its weights did not move, though they had gradients.",
            advice="Raise its learning rate, or keep its weights in float32: steps this small are lost in rounding.",
        )
    if 2 * len(unmoved) > total:
        raise DarkroomError(
            f"Most of the {unit} does not learn: in {FIRST_STEPS} steps {_share(unmoved, watched)} did not move, "
            f"though they had gradients.",
            advice="Raise its learning rate, or choose another optimizer.",
        )


def _share(names: Collection[str], watched: _Watched) -> str:
    """Return how many of a unit's parameters these are, and the names of some, as the part it lives in names them."""
    own = [name.removeprefix(f"{watched.group.part or watched.group.name}.") for name in names]
    more = f" and {len(own) - _MOST_NAMED} more" if len(own) > _MOST_NAMED else ""
    return f"{len(own)} of its {len(watched.group.parameters)} parameters ({', '.join(own[:_MOST_NAMED])}{more})"
