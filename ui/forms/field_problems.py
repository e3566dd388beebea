"""The problems of a variant's own fields while they are edited, such as a formula that cannot be read. No Tk."""

from __future__ import annotations

from modules.config.schema import Config
from modules.optim.registry import optimizer_spec
from modules.optim.schedule_registry import SCHEDULES


def field_problem(config: Config, path: str) -> str:
    """Return the error that the record of an optimizer or a schedule finds at the field of a path; empty if none.

    The rules report the same before a run; they are not imported here, because the window starts without them.
    """
    section, _, name = path.rpartition(".")
    match section:
        case "training.optimizer":
            problems = optimizer_spec(config.training.optimizer).problems(config.training.optimizer)
        case "training.schedule":
            problems = SCHEDULES[config.training.schedule.name].problems(config.training.schedule)
        case _:
            return ""
    return next((p.message for p in problems if p.path == name and p.severity == "error"), "")
