"""Learning rate schedules: how the rate moves over the run."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from annotated_types import Ge, Gt, Le

from modules.settings.field import Section, Setting

Warmup = Annotated[
    int,
    Ge(0),
    Le(1_000_000),
    Setting("Warm-up", "The learning rate rises from zero to its full value over this many steps.", unit="steps"),
]
WarmupShare = Annotated[
    float,
    Ge(0),
    Le(1),
    Setting(
        "Warm-up as a share",
        "The warm-up as a share of the whole run; counts where the number of warm-up steps is 0.",
        level="advanced",
    ),
]
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


class Constant(Section):
    """The same learning rate all the way."""

    name: Literal["constant"] = "constant"
    warmup_steps: Warmup = 0
    warmup_share: WarmupShare = 0.0


class Linear(Section):
    """Falls in a straight line to its lowest share."""

    name: Literal["linear"] = "linear"
    warmup_steps: Warmup = 0
    warmup_share: WarmupShare = 0.0
    min_factor: MinFactor = 0.0


class Cosine(Section):
    """Falls along half a cosine to its lowest share (Loshchilov and Hutter 2017, without restarts)."""

    name: Literal["cosine"] = "cosine"
    warmup_steps: Warmup = 0
    warmup_share: WarmupShare = 0.0
    min_factor: MinFactor = 0.0


class CosineWithRestarts(Section):
    """Falls and rises along whole waves of a cosine."""

    name: Literal["cosine_with_restarts"] = "cosine_with_restarts"
    warmup_steps: Warmup = 0
    warmup_share: WarmupShare = 0.0
    min_factor: MinFactor = 0.0
    cycles: Cycles = 1.0


class CosineWithHardRestarts(Section):
    """Falls along half a cosine and leaps back to the full rate (Loshchilov and Hutter 2017)."""

    name: Literal["cosine_with_hard_restarts"] = "cosine_with_hard_restarts"
    warmup_steps: Warmup = 0
    warmup_share: WarmupShare = 0.0
    min_factor: MinFactor = 0.0
    cycles: Cycles = 1.0


class Rex(Section):
    """REX (Chen et al. 2022): stays high for long and falls fast at the end."""

    name: Literal["rex"] = "rex"
    warmup_steps: Warmup = 0
    warmup_share: WarmupShare = 0.0
    min_factor: MinFactor = 0.0


class OfAdafactor(Section):
    """The rate that Adafactor chooses by itself."""

    name: Literal["adafactor"] = "adafactor"
    warmup_steps: Warmup = 0
    warmup_share: WarmupShare = 0.0


class Custom(Section):
    """A schedule of your own: a class of torch's kind, by its dotted name."""

    name: Literal["custom"] = "custom"
    warmup_steps: Warmup = 0
    warmup_share: WarmupShare = 0.0
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


ScheduleSettings = Constant | Linear | Cosine | CosineWithRestarts | CosineWithHardRestarts | Rex | OfAdafactor | Custom
SCHEDULE_LABELS = {
    "constant": "Constant",
    "linear": "Linear",
    "cosine": "Cosine",
    "cosine_with_restarts": "Cosine in waves",
    "cosine_with_hard_restarts": "Cosine with restarts",
    "rex": "REX",
    "adafactor": "Adafactor's own",
    "custom": "Your own",
}
SCHEDULES_NOT_YET = frozenset({"adafactor", "custom"})
SCHEDULES = {str(schedule.model_fields["name"].default): schedule for schedule in get_args(ScheduleSettings)}
