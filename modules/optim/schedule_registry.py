"""The learning rate schedules, one line each, in the order the window lists them; the first is the default.

Each name has the module in `schedules/` with its record: that of "cosine" is `COSINE`. A module is imported when one of
its records is read first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.optim.schedule_spec import ScheduleSpec
from modules.settings.lazy_variants import LazyRecords

SCHEDULES: Mapping[str, ScheduleSpec[Any]] = LazyRecords(
    "modules.optim.schedules",
    {
        "constant": "flat",
        "linear": "decays",
        "cosine": "cosines",
        "cosine_with_restarts": "cosines",
        "cosine_with_hard_restarts": "cosines",
        "rex": "decays",
        "polynomial": "decays",
        "inverse_sqrt": "decays",
        "wsd": "decays",
        "points": "points",
        "expression": "expression",
        "adafactor": "flat",
        "custom": "custom",
    },
)
DEFAULT_SCHEDULE = SCHEDULES[next(iter(SCHEDULES))]


def formula_schedule() -> ScheduleSpec[Any]:
    """Return the schedule whose curve is a formula, in its field `expression`: for measuring a sweep."""
    return SCHEDULES["expression"]
