"""What the program needs to know of a learning rate schedule: one record each, found through `schedule_registry.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from annotated_types import Ge, Gt, Le

from modules.settings.field import Section, Setting

# What several schedules have.
MinFactor = Annotated[
    float,
    Ge(0),
    Le(1),
    Setting("Lowest share", "The share of the learning rate that is left at the end.", level="advanced"),
]
Cycles = Annotated[
    float,
    Gt(0),
    Le(10_000),
    Setting("Cycles", "How often the rate goes through its curve within the run."),
]


class ScheduleSettings(Section):
    """The settings of a schedule: the warm-up, which all have, and fields of its own."""

    name: str
    warmup_steps: Annotated[
        int,
        Ge(0),
        Le(1_000_000),
        Setting("Warm-up", "The learning rate rises from zero to its full value over this many steps.", unit="steps"),
    ] = 0
    warmup_share: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Warm-up as a share",
            "The warm-up as a share of the whole run; counts where the number of warm-up steps is 0.",
            level="advanced",
        ),
    ] = 0.0


Settings = TypeVar("Settings", bound=ScheduleSettings)


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec(Generic[Settings]):
    """A learning rate schedule.

    `curve(settings, progress)` returns where it is, from 1 down to 0, at a share of the run after its warm-up, in
    [0, 1]; a schedule without a curve is not supported yet.
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
        """What it is, in a sentence."""
        return (self.settings.__doc__ or "").strip().splitlines()[0]

    @property
    def is_supported(self) -> bool:
        """Whether runs can follow it; what they cannot follow is refused by name before a run."""
        return self.curve is not None
