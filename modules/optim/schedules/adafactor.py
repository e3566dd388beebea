"""The learning rate that Adafactor chooses itself (Shazeer and Stern 2018, section 8)."""

from __future__ import annotations

from typing import Literal

from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec


class OfAdafactor(ScheduleSettings):
    """The learning rate that Adafactor chooses itself, with its own warm-up; the one set here has no effect."""

    name: Literal["adafactor"] = "adafactor"


def _curve(settings: OfAdafactor, at: Position) -> float:
    return 1.0


ADAFACTOR = ScheduleSpec(settings=OfAdafactor, label="Adafactor", curve=_curve, is_of_optimizer=True)
