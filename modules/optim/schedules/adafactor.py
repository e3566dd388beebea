"""The learning rate that Adafactor chooses itself."""

from __future__ import annotations

from typing import Literal

from modules.optim.schedule_spec import ScheduleSettings, ScheduleSpec


class OfAdafactor(ScheduleSettings):
    """The learning rate that Adafactor chooses itself."""

    name: Literal["adafactor"] = "adafactor"


SPEC = ScheduleSpec(settings=OfAdafactor, label="Adafactor")
