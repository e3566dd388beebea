"""AdaGrad (Duchi et al. 2011): the learning rate of each weight falls with its past gradients."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import Epsilon, WeightDecay
from modules.optim.terms.kin import (
    BlockWiseOf32,
    FirstSum,
    PercentileClippingOf32,
    RateDecay,
    Smallest8BitOf32,
    StateBitsOf32,
)


class Adagrad(OptimizerSettings):
    """AdaGrad (Duchi et al. 2011): the learning rate of each weight falls with its past gradients."""

    name: Literal["adagrad"] = "adagrad"
    lr_decay: RateDecay = 0.0
    weight_decay: WeightDecay = 0.0
    initial_accumulator_value: FirstSum = 0.0
    eps: Epsilon = 1e-10
    optim_bits: StateBitsOf32 = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    percentile_clipping: PercentileClippingOf32 = 100
    block_wise: BlockWiseOf32 = True


def _arguments(settings: Adagrad) -> dict[str, Any]:
    return {
        "lr_decay": settings.lr_decay,
        "weight_decay": settings.weight_decay,
        "initial_accumulator_value": settings.initial_accumulator_value,
        "eps": settings.eps,
    }


SPEC = OptimizerSpec(
    settings=Adagrad,
    label="AdaGrad",
    rates=LARGER_RATES,
    state_bytes=per_weight(4.0),
    factory="modules.optim.lazy_adagrad:LazyAdagrad",
    arguments=_arguments,
)
