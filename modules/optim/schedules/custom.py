"""A custom schedule: a class like those of torch.optim.lr_scheduler, by its dotted name."""

from __future__ import annotations

from typing import Annotated, Literal

from modules.optim.schedule_spec import ScheduleSettings, ScheduleSpec
from modules.settings.field import Setting


class Custom(ScheduleSettings):
    """A custom schedule: a class like those of torch.optim.lr_scheduler, by its dotted name."""

    name: Literal["custom"] = "custom"
    class_name: Annotated[
        str,
        Setting(
            "Class",
            "The dotted name of the class, for example torch.optim.lr_scheduler.StepLR.",
            level="advanced",
            empty_means="no class",
        ),
    ] = ""
    arguments: Annotated[
        str,
        Setting(
            "Arguments",
            "The arguments of the class, one per line: name = value. A value is a number, a quoted string or a "
            "placeholder such as %TOTAL_STEPS%.",
            level="advanced",
            multiline=True,
        ),
    ] = ""


SPEC = ScheduleSpec(settings=Custom, label="Custom")
