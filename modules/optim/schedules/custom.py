"""A schedule of your own: a class of torch's kind, by its dotted name."""

from __future__ import annotations

from typing import Annotated, Literal

from modules.optim.schedule_spec import ScheduleSettings, ScheduleSpec
from modules.settings.field import Setting


class Custom(ScheduleSettings):
    """A schedule of your own: a class of torch's kind, by its dotted name."""

    name: Literal["custom"] = "custom"
    class_name: Annotated[
        str,
        Setting(
            "Class",
            "Where the class is, as in torch.optim.lr_scheduler.StepLR.",
            level="advanced",
            empty_means="none is named",
        ),
    ] = ""
    arguments: Annotated[
        str,
        Setting(
            "Arguments",
            "What the class is called with, one line for each: name = value. A value is a number, a word in quotes, "
            "or a placeholder such as %TOTAL_STEPS%.",
            level="advanced",
            multiline=True,
        ),
    ] = ""


SPEC = ScheduleSpec(settings=Custom, label="Your own")
