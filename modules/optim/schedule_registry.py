"""The learning rate schedules, one line each, in the order the window lists them; the first is the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.optim.schedule_spec import ScheduleSpec
from modules.optim.schedules import (
    adafactor,
    constant,
    cosine,
    cosine_with_hard_restarts,
    cosine_with_restarts,
    custom,
    expression,
    inverse_sqrt,
    linear,
    points,
    polynomial,
    rex,
    wsd,
)

_RECORDS: tuple[ScheduleSpec[Any], ...] = (
    constant.SPEC,
    linear.SPEC,
    cosine.SPEC,
    cosine_with_restarts.SPEC,
    cosine_with_hard_restarts.SPEC,
    rex.SPEC,
    polynomial.SPEC,
    inverse_sqrt.SPEC,
    wsd.SPEC,
    points.SPEC,
    expression.SPEC,
    adafactor.SPEC,
    custom.SPEC,
)
SCHEDULES: Mapping[str, ScheduleSpec[Any]] = {record.name: record for record in _RECORDS}
DEFAULT_SCHEDULE = _RECORDS[0]
FORMULA_SCHEDULE = expression.SPEC
"""The schedule whose curve is a formula, in its field `expression`: for measuring a sweep."""
