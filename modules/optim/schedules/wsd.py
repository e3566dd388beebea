"""Warm-up, stable, decay (WSD; Hu et al. 2024, arXiv 2404.06395, section 4.2): constant, and falls only at the end."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from annotated_types import Gt, Le

from modules.optim.schedule_spec import MinFactor, Position, ScheduleSettings, ScheduleSpec
from modules.optim.schedules.cosine import half_cosine
from modules.settings.field import Setting


class WarmupStableDecay(ScheduleSettings):
    """Warm-up, stable, decay (WSD, Hu et al. 2024): constant, and falls only at the end of the run."""

    name: Literal["wsd"] = "wsd"
    min_factor: MinFactor = 0.0
    decay_share: Annotated[
        float,
        Gt(0),
        Le(1),
        Setting("Decay ratio", "The last fraction of the run after the warm-up, in which the learning rate falls."),
    ] = 0.2
    decay_shape: Annotated[
        Literal["linear", "cosine", "sqrt"],
        Setting(
            "Decay shape",
            "How the learning rate falls.",
            level="advanced",
            choice_labels={"linear": "Linear", "cosine": "Cosine", "sqrt": "1 - square root"},
        ),
    ] = "linear"


def _curve(settings: WarmupStableDecay, at: Position) -> float:
    decayed = max(0.0, 1.0 - (1.0 - at.progress) / settings.decay_share)
    match settings.decay_shape:
        case "linear":
            return 1.0 - decayed
        case "cosine":
            return half_cosine(decayed)
        case "sqrt":  # Hägele et al. 2024, arXiv 2405.18392, section 3
            return 1.0 - math.sqrt(decayed)


WSD = ScheduleSpec(settings=WarmupStableDecay, label="Warmup-stable-decay (WSD)", curve=_curve)
