"""Lion that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import Beta1, Beta2, FirstDistance, LogEvery, Sharded, WeightDecay


class DAdaptLion(OptimizerSettings):
    """Lion that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_lion"] = "dadapt_lion"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    log_every: LogEvery = 0
    d0: FirstDistance = 1e-6
    fsdp_in_use: Sharded = False


SPEC = OptimizerSpec(
    settings=DAdaptLion,
    label="D-Adapt Lion",
    rates=FINDS_ITS_RATE,
    has_one_rate=True,
)
