"""The schedule of the default config, whose module the window's start imports: the learning rate as it is set."""

from typing import Literal

from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec


class Constant(ScheduleSettings):
    """The same learning rate for the whole run."""

    name: Literal["constant"] = "constant"


def _constant_curve(settings: Constant, at: Position) -> float:
    return 1.0


CONSTANT = ScheduleSpec(settings=Constant, label="Constant", curve=_constant_curve)
