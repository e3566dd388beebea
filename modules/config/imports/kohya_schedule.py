"""kohya's learning rate schedule."""

from __future__ import annotations

from typing import Any

from modules.config.imports.kohya_values import Args, arguments_of, number_of, pop_first
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.system.problem import Problem, shown

_SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "polynomial": "polynomial",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "cosine_with_restarts": "cosine_with_hard_restarts",
    "inverse_sqrt": "inverse_sqrt",
    "warmup_stable_decay": "wsd",
    "adafactor": "adafactor",
}


def schedule(given: Args, result: Tree, notes: Notes) -> None:
    """Convert the schedule; the optimizer must be converted already, since it may choose its own rate."""
    theirs = str(pop_first(given, "lr_scheduler") or "constant").partition(":")[0]  # "adafactor:0.0001" in metadata
    own_class = str(pop_first(given, "lr_scheduler_type") or "")
    arguments = arguments_of(pop_first(given, "lr_scheduler_args"))
    cycles, power, min_factor, timescale, decay = (
        number_of(pop_first(given, key))
        for key in (
            "lr_scheduler_num_cycles",
            "lr_scheduler_power",
            "lr_scheduler_min_lr_ratio",
            "lr_scheduler_timescale",
            "lr_decay_steps",
        )
    )
    ours = _SCHEDULES.get(theirs)
    settings: dict[str, Any] = {"name": ours or "constant"}
    if result["training"]["optimizer"].get("relative_step"):
        settings = {"name": "adafactor"}
    elif own_class:
        lines = (f"{name} = {value!r}" for name, value in arguments.items())
        settings = {"name": "custom", "class_name": own_class, "arguments": "\n".join(lines)}
    elif ours is None:
        message = f"The schedule {shown(theirs)} is not supported here; constant is used instead."
        notes.append(Problem("training.schedule", message, "warning"))
    own: dict[str, dict[str, Any]] = {
        "cosine_with_hard_restarts": {"cycles": cycles},
        "polynomial": {"power": power},
        "inverse_sqrt": {"timescale_steps": int(timescale or 0)},
        # sd-scripts: steps, or a fraction below 1
        "wsd": {"decay_share": decay if decay and decay < 1 else None, "min_factor": min_factor},
        "cosine": {"min_factor": min_factor},
    }
    settings |= {name: value for name, value in own.get(settings["name"], {}).items() if value}
    if settings["name"] == "wsd" and decay and decay >= 1:
        message = f"The decay of {decay:g} steps is set as a fraction of the run here; the default is used."
        notes.append(Problem("training.schedule.decay_share", message, "warning"))
    put(result, "training.schedule", {**settings, **_warmup(given)})


def _warmup(given: Args) -> dict[str, Any]:
    percent = number_of(pop_first(given, "lr_warmup"))  # kohya_ss: percent of the run
    steps = number_of(pop_first(given, "lr_warmup_steps"))  # sd-scripts: steps, or a fraction below 1
    if steps and steps >= 1:
        return {"warmup_steps": int(steps)}
    return {"warmup_share": steps or min(1.0, (percent or 0) / 100)} if steps or percent else {}
