"""The problems of a variant's own fields while they are edited, such as a formula that cannot be read. No Tk."""

from __future__ import annotations

from modules.config.rules.optimizers import optimizer_fields
from modules.config.rules.schedules import schedule_fields
from modules.config.schema import Config


def field_problem(config: Config, path: str) -> str:
    """Return the error that the record of an optimizer or a schedule finds at the field of a path; empty if none."""
    problems = (*optimizer_fields(config), *schedule_fields(config))
    return next((p.message for p in problems if p.path == path and p.severity == "error"), "")
