"""The record of a learning rate schedule; `schedule_registry.py` lists one per schedule."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Generic, NamedTuple, TypeVar

from annotated_types import Interval

from modules.settings.field import Section, Setting, advanced_setting
from modules.settings.shared_types import Fraction
from modules.system.problem import Problem

# Fields that several schedules share.
MinFactor = Annotated[
    Fraction, advanced_setting("Min factor", "The fraction of the learning rate that is left at the end.")
]
Cycles = Annotated[
    float,
    *Interval(gt=0, le=10_000),
    Setting("Cycles", "How often the schedule runs through its curve within the run."),
]


class ScheduleSettings(Section):
    """The settings of a schedule: the warm-up, which all schedules have, and the schedule's own fields."""

    name: str
    warmup_steps: Annotated[
        int,
        *Interval(ge=0, le=1_000_000),
        Setting(
            "Warmup steps", "The learning rate rises from zero to its full value over this many steps.", unit="steps"
        ),
    ] = 0
    warmup_share: Annotated[
        Fraction,
        advanced_setting(
            "Warmup ratio", "The warm-up as a fraction of the whole run. Used when the number of warm-up steps is 0."
        ),
    ] = 0.0


class Position(NamedTuple):
    """A step of a run after the warm-up. Steps count from 0; `learning_rate` is the one set for the run."""

    step: int
    total_steps: int
    warmup_steps: int = 0
    epochs: int = 1
    learning_rate: float = 1.0

    @property
    def progress(self) -> float:
        """The fraction of the run after the warm-up, in [0, 1]."""
        return min(1.0, (self.step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))

    @property
    def epoch(self) -> float:
        """The number of finished epochs, with the fraction of the current one."""
        return self.step / max(1, self.total_steps) * self.epochs


Settings = TypeVar("Settings", bound=ScheduleSettings)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduleSpec(Generic[Settings]):
    """A learning rate schedule.

    `curve(settings, position)` returns the schedule's value at a step after the warm-up: from 1 down to 0, or any
    number of at least 0 where the settings have no `min_factor`. It may raise ValueError or ArithmeticError with the
    reason why it has no value. `problems(settings)` yields the problems of its fields, with the fields' names.
    `is_of_optimizer`: the optimizer chooses its learning rate itself (`OptimizerSpec.chooses_rate`).
    """

    settings: type[Settings]
    label: str
    curve: Callable[[Settings, Position], float]
    problems: Callable[[Settings], Iterator[Problem]] = lambda settings: iter(())
    is_of_optimizer: bool = False

    @property
    def name(self) -> str:
        """Its name in files."""
        return str(self.settings.model_fields["name"].default)

    @property
    def help(self) -> str:
        """A one-sentence description."""
        return (self.settings.__doc__ or "").strip().splitlines()[0]
