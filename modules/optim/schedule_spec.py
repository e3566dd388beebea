"""The record of a learning rate schedule; `schedule_registry.py` lists one per schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from annotated_types import Ge, Gt, Le

from modules.settings.field import Section, Setting

# Fields that several schedules share.
MinFactor = Annotated[
    float,
    Ge(0),
    Le(1),
    Setting("Min factor", "The fraction of the learning rate that is left at the end.", level="advanced"),
]
Cycles = Annotated[
    float,
    Gt(0),
    Le(10_000),
    Setting("Cycles", "How often the schedule runs through its curve within the run."),
]


class ScheduleSettings(Section):
    """The settings of a schedule: the warm-up, which all schedules have, and the schedule's own fields."""

    name: str
    warmup_steps: Annotated[
        int,
        Ge(0),
        Le(1_000_000),
        Setting(
            "Warmup steps", "The learning rate rises from zero to its full value over this many steps.", unit="steps"
        ),
    ] = 0
    warmup_share: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Warmup ratio",
            "The warm-up as a fraction of the whole run. Used when the number of warm-up steps is 0.",
            level="advanced",
        ),
    ] = 0.0


Settings = TypeVar("Settings", bound=ScheduleSettings)


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec(Generic[Settings]):
    """A learning rate schedule.

    `curve(settings, progress)` returns the schedule's value, from 1 down to 0; `progress` in [0, 1] is the fraction of
    the run after the warm-up. A schedule without a curve is not supported yet.
    """

    settings: type[Settings]
    label: str
    curve: Callable[[Settings, float], float] | None = None

    @property
    def name(self) -> str:
        """Its name in files."""
        return str(self.settings.model_fields["name"].default)

    @property
    def help(self) -> str:
        """A one-sentence description."""
        return (self.settings.__doc__ or "").strip().splitlines()[0]

    @property
    def is_supported(self) -> bool:
        """Whether runs can use it; preflight rejects an unsupported schedule by name."""
        return self.curve is not None
