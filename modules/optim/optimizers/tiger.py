"""Tiger (Su 2023): Lion with a single running average and the least memory of its kind."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import Beta1, DecoupledDecay, FixedDecay, FusedBackPass, WeightDecay
from modules.optim.terms.kin import PYTORCH_OPTIMIZER


class Tiger(OptimizerSettings):
    """Tiger (Su 2023): Lion with a single running average and the least memory of its kind."""

    name: Literal["tiger"] = "tiger"
    beta1: Beta1 = 0.965
    weight_decay: WeightDecay = 0.01
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Tiger) -> dict[str, Any]:
    return {
        "beta": settings.beta1,
        "weight_decay": settings.weight_decay,
        "weight_decouple": settings.decoupled_decay,
        "fixed_decay": settings.fixed_decay,
    }


SPEC = OptimizerSpec(
    settings=Tiger,
    label="TIGER",
    factory="modules.optim.classes.counting_by_weight:tiger",
    arguments=_arguments,
    rates=SIGN_RATES,
    state_bytes=per_weight(4.0),
    packages=(PYTORCH_OPTIMIZER,),
)
