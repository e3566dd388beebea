"""Yogi (Zaheer et al. 2018): Adam with step sizes that grow slowly."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    DecoupledDecay,
    Epsilon,
    FixedDecay,
    FusedBackPass,
    WeightDecay,
    advanced,
)
from modules.optim.terms.kin import PYTORCH_OPTIMIZER, AdamDebias
from modules.optim.terms.removed import Removed

_ADANORM = "pytorch-optimizer no longer has AdaNorm for Yogi."


class Yogi(OptimizerSettings):
    """Yogi (Zaheer et al. 2018): Adam with step sizes that grow slowly."""

    name: Literal["yogi"] = "yogi"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False
    adam_debias: AdamDebias = False
    initial_accumulator: Annotated[
        float,
        Ge(0),
        Le(1000),
        advanced(
            "Initial accumulator",
            "The start value of both running averages: a larger value makes the first steps smaller.",
        ),
    ] = 1e-6
    eps: Epsilon = 1e-3
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Yogi) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "weight_decay": settings.weight_decay,
        "weight_decouple": settings.decoupled_decay,
        "fixed_decay": settings.fixed_decay,
        "adam_debias": settings.adam_debias,
        "initial_accumulator": settings.initial_accumulator,
        "eps": settings.eps,
    }


SPEC = OptimizerSpec(
    settings=Yogi,
    label="Yogi",
    factory="modules.optim.classes.counting_by_weight:yogi",
    arguments=_arguments,
    rates=LARGER_RATES,
    packages=(PYTORCH_OPTIMIZER,),
    removed={"r": Removed((0.95,), _ADANORM), "adanorm": Removed((False,), _ADANORM)},
)
