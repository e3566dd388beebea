"""Lion (Chen et al. 2023): uses only the momentum's sign, so every weight changes by the full learning rate."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import Beta1, Beta2, FusedBackPass, WeightDecay
from modules.optim.terms.removed import TRITON
from modules.system.package import Package


class Lion(OptimizerSettings):
    """Lion (Chen et al. 2023): uses only the momentum's sign, so every weight changes by the full learning rate."""

    name: Literal["lion"] = "lion"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    weight_decay: WeightDecay = 0.0
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Lion) -> dict[str, Any]:
    return {"betas": (settings.beta1, settings.beta2), "weight_decay": settings.weight_decay}


SPEC = OptimizerSpec(
    settings=Lion,
    label="Lion",
    factory="lion_pytorch:Lion",
    is_elementwise=True,
    arguments=_arguments,
    rates=SIGN_RATES,
    state_bytes=per_weight(4.0),
    packages=(Package("lion_pytorch"),),
    removed={"use_triton": TRITON},
)
