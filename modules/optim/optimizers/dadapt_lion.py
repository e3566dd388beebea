"""Lion that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec, always, distance_times_rate, per_weight
from modules.optim.terms.general import Beta1, Beta2, FirstDistance, WeightDecay
from modules.optim.terms.removed import LOG_EVERY, SHARDED
from modules.system.package import Package


class DAdaptLion(OptimizerSettings):
    """Lion that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_lion"] = "dadapt_lion"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    d0: FirstDistance = 1e-6


def _arguments(settings: DAdaptLion) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "weight_decay": settings.weight_decay,
        "d0": settings.d0,
    }


SPEC = OptimizerSpec(
    settings=DAdaptLion,
    label="D-Adapt Lion",
    factory="dadaptation:DAdaptLion",
    arguments=_arguments,
    rates=FINDS_ITS_RATE,
    state_bytes=per_weight(8.0),
    waits_per_weight=always,
    packages=(Package("dadaptation"),),
    steps_at_once=True,
    group_state=("d", "k", "numerator_weighted"),
    has_one_rate=True,
    effective_rate=distance_times_rate,
    removed={"log_every": LOG_EVERY, "fsdp_in_use": SHARDED},
)
