"""Convert OneTrainer's learning rate schedule to our variants."""

from __future__ import annotations

import math
from collections.abc import Mapping

from modules.config.migrations.tree_moves import Notes, Tree, number
from modules.optim.schedule_registry import SCHEDULES
from modules.system.problem import Problem, shown

_MAX_WARMUP_STEPS = 1_000_000
# Values of a key that mean nothing to schedules without such a field.
_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "learning_rate_min_factor": (0, None),
    "learning_rate_cycles": (1, None),
    "custom_learning_rate_scheduler": (None, ""),
    "scheduler_params": (None, []),
}


def schedule_from(rest: Tree, notes: Notes, steps_per_update: int, where: str = "training.schedule") -> Tree:
    """Return our schedule for their keys, which are popped from `rest`; never raises.

    Their warm-up is counted in batches, of which `steps_per_update` make one of our steps; up to 1 it is a fraction
    of the run.
    """
    theirs = rest.pop("learning_rate_scheduler", "CONSTANT")
    schedule: Tree = {"name": "constant"}
    if isinstance(theirs, str) and theirs.lower() in SCHEDULES:
        schedule["name"] = theirs.lower()
    else:
        rest.update({} if theirs is None else {"learning_rate_scheduler": theirs})
        notes.append(Problem(where, f"{shown(theirs)} is not a known schedule; constant is used instead.", "warning"))
    _convert_warmup(rest, schedule, notes, max(1, steps_per_update), where)
    fields = SCHEDULES[schedule["name"]].settings.model_fields
    if "min_factor" in fields:
        _convert_share(rest, schedule, notes, where)
    if "cycles" in fields:
        _convert_cycles(rest, schedule, notes, where)
    if "class_name" in fields:
        _convert_custom(rest, schedule, notes, where)
    for key, defaults in _DEFAULTS.items():
        if key in rest and rest[key] in defaults:
            del rest[key]
    return schedule


def _convert_warmup(rest: Tree, schedule: Tree, notes: Notes, steps_per_update: int, where: str) -> None:
    given = rest.pop("learning_rate_warmup_steps", 200.0)
    warmup = number(given)
    if warmup is None or warmup / steps_per_update > _MAX_WARMUP_STEPS:
        message = f"{shown(given)} is not a valid warm-up length; warm-up is off."
        notes.append(Problem(f"{where}.warmup_steps", message, "warning"))
    elif warmup > 1:
        schedule["warmup_steps"] = math.ceil(warmup / steps_per_update)
    else:
        schedule["warmup_share"] = max(0, warmup)


def _convert_share(rest: Tree, schedule: Tree, notes: Notes, where: str) -> None:
    given = rest.pop("learning_rate_min_factor", 0.0)
    factor = number(given)
    if factor is not None and 0 <= factor <= 1:
        schedule["min_factor"] = factor
    elif given is not None:
        message = f"{shown(given)} is not a number from 0 to 1; the learning rate decays to 0."
        notes.append(Problem(f"{where}.min_factor", message, "warning"))


def _convert_cycles(rest: Tree, schedule: Tree, notes: Notes, where: str) -> None:
    given = rest.pop("learning_rate_cycles", 1.0)
    cycles = number(given)
    if cycles is not None and 0 < cycles <= 10_000:
        schedule["cycles"] = cycles
    elif given is not None:
        notes.append(Problem(f"{where}.cycles", f"{shown(given)} is not a number of cycles; 1 is used.", "warning"))


def _convert_custom(rest: Tree, schedule: Tree, notes: Notes, where: str) -> None:
    name = rest.get("custom_learning_rate_scheduler")
    if isinstance(name, str):
        schedule["class_name"] = rest.pop("custom_learning_rate_scheduler")
    arguments = rest.get("scheduler_params")
    if arguments is None:
        return
    if isinstance(arguments, list) and all(_is_argument(a) for a in arguments):
        lines = (f"{a['key']} = {a['value']}" for a in arguments)
        schedule["arguments"] = "\n".join(lines)
        del rest["scheduler_params"]
    else:
        message = f"{shown(arguments)} is not a list of names and values; the arguments are left out."
        notes.append(Problem(f"{where}.arguments", message, "warning"))


def _is_argument(given: object) -> bool:
    """Return whether this is a name and a value, each on one line."""
    return isinstance(given, dict) and all(
        isinstance(given.get(k), str | int | float) and "\n" not in str(given[k]) for k in ("key", "value")
    )
