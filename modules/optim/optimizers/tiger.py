"""Tiger (Su 2023): Lion with a single running average and the least memory of its kind."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import Beta1, DecoupledDecay, FixedDecay, WeightDecay


class Tiger(OptimizerSettings):
    """Tiger (Su 2023): Lion with a single running average and the least memory of its kind."""

    name: Literal["tiger"] = "tiger"
    beta1: Beta1 = 0.965
    weight_decay: WeightDecay = 0.01
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False


SPEC = OptimizerSpec(
    settings=Tiger,
    label="TIGER",
    rates=SIGN_RATES,
    state_bytes=per_weight(4.0),
)
