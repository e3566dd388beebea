"""The rate that Adafactor chooses by itself."""

from __future__ import annotations

from typing import Literal

from modules.optim.schedule_spec import ScheduleSettings, ScheduleSpec


class OfAdafactor(ScheduleSettings):
    """The rate that Adafactor chooses by itself."""

    name: Literal["adafactor"] = "adafactor"


SPEC = ScheduleSpec(settings=OfAdafactor, label="Adafactor's own")
