"""Schedules without a curve: constant, and the rate that Adafactor chooses itself."""

from __future__ import annotations

from typing import Literal

from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec


class Constant(ScheduleSettings):
    """The same learning rate for the whole run."""

    name: Literal["constant"] = "constant"


def _constant_curve(settings: Constant, at: Position) -> float:
    return 1.0


CONSTANT = ScheduleSpec(settings=Constant, label="Constant", curve=_constant_curve)


class OfAdafactor(ScheduleSettings):
    """The learning rate that Adafactor chooses itself, with its own warm-up; the one set here has no effect."""

    name: Literal["adafactor"] = "adafactor"


def _adafactor_curve(settings: OfAdafactor, at: Position) -> float:
    return 1.0


ADAFACTOR = ScheduleSpec(settings=OfAdafactor, label="Adafactor", curve=_adafactor_curve, is_of_optimizer=True)
