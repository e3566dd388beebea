"""Learning rate schedules: how the rate moves over the run."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.config.field import Section, Setting

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


ScheduleSettings = Constant | Linear | Cosine
SCHEDULE_LABELS = {"constant": "Constant", "linear": "Linear", "cosine": "Cosine"}
