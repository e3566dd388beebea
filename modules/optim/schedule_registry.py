"""The learning rate schedules, one line each, in the order the window lists them; the first is the default.

The record named "cosine" is `SPEC` in `schedules/cosine.py`; it is imported when it is read first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.optim.schedule_spec import ScheduleSpec
from modules.settings.lazy_variants import LazyRecords

SCHEDULES: Mapping[str, ScheduleSpec[Any]] = LazyRecords(
    "modules.optim.schedules",
    "constant",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_hard_restarts",
    "rex",
    "polynomial",
    "inverse_sqrt",
    "wsd",
    "points",
    "expression",
    "adafactor",
    "custom",
)
DEFAULT_SCHEDULE = SCHEDULES[next(iter(SCHEDULES))]


def formula_schedule() -> ScheduleSpec[Any]:
    """Return the schedule whose curve is a formula, in its field `expression`: for measuring a sweep."""
    return SCHEDULES["expression"]
