"""SGD that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec, always, per_weight
from modules.optim.terms.general import FirstDistance, GrowthRate, Momentum, WeightDecay
from modules.optim.terms.removed import LOG_EVERY, SHARDED
from modules.system.package import Package


class DAdaptSgd(OptimizerSettings):
    """SGD that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_sgd"] = "dadapt_sgd"
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None


def _arguments(settings: DAdaptSgd) -> dict[str, Any]:
    return {
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "growth_rate": math.inf if settings.growth_rate is None else settings.growth_rate,
        "d0": settings.d0,
    }


def _effective_rate(group: Mapping[str, Any]) -> float | None:
    """The step size: as in the other variants, over the norm of the first gradient; None before it is known."""
    first_norm = group.get("g0_norm")
    return float(group["d"] * group["lr"] / first_norm) if first_norm else None


SPEC = OptimizerSpec(
    settings=DAdaptSgd,
    label="D-Adapt SGD",
    factory="modules.optim.classes.d_adaptation:DAdaptSGD",
    arguments=_arguments,
    rates=FINDS_ITS_RATE,
    state_bytes=per_weight(12.0),
    waits_per_weight=always,
    packages=(Package("dadaptation"),),
    steps_at_once=True,
    group_state=("d", "k", "numerator_weighted", "g0_norm"),
    has_one_rate=True,
    effective_rate=_effective_rate,
    removed={"log_every": LOG_EVERY, "fsdp_in_use": SHARDED},
)
