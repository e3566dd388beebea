"""Adan (Xie et al. 2022) that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec, always, distance_times_rate, per_weight
from modules.optim.terms.general import Beta1, Epsilon, FirstDistance, GrowthRate, WeightDecay, advanced
from modules.optim.terms.removed import LOG_EVERY
from modules.system.package import Package


class DAdaptAdan(OptimizerSettings):
    """Adan (Xie et al. 2022) that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_adan"] = "dadapt_adan"
    beta1: Beta1 = 0.98
    beta2: Annotated[
        float,
        Ge(0),
        Lt(1),
        advanced("Beta 2", "Decay of the running average of the gradients' change."),
    ] = 0.92
    beta3: Annotated[float, Ge(0), Lt(1), advanced("Beta 3", "Decay of the running average of squared gradients.")] = (
        0.99
    )
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.02
    no_prox: Annotated[
        bool,
        advanced("No prox", "Applies weight decay before the step, as AdamW does, not as a proximal step after it."),
    ] = False
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None


def _arguments(settings: DAdaptAdan) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2, settings.beta3),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "no_prox": settings.no_prox,
        "growth_rate": math.inf if settings.growth_rate is None else settings.growth_rate,
        "d0": settings.d0,
    }


SPEC = OptimizerSpec(
    settings=DAdaptAdan,
    label="D-Adapt Adan",
    factory="dadaptation:DAdaptAdan",
    arguments=_arguments,
    rates=FINDS_ITS_RATE,
    state_bytes=per_weight(20.0),
    waits_per_weight=always,
    packages=(Package("dadaptation"),),
    steps_at_once=True,
    group_state=("d", "k", "gsq_weighted"),
    has_one_rate=True,
    effective_rate=distance_times_rate,
    removed={"log_every": LOG_EVERY},
)
