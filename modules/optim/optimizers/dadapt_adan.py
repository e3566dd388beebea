"""Adan (Xie et al. 2022) that finds its learning rate."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Lt

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import Beta1, Epsilon, FirstDistance, GrowthRate, LogEvery, WeightDecay, advanced


class DAdaptAdan(OptimizerSettings):
    """Adan (Xie et al. 2022) that finds its learning rate."""

    name: Literal["dadapt_adan"] = "dadapt_adan"
    beta1: Beta1 = 0.98
    beta2: Annotated[
        float,
        Ge(0),
        Lt(1),
        advanced("Beta 2", "How long the running mean of the gradients' change remembers."),
    ] = 0.92
    beta3: Annotated[
        float, Ge(0), Lt(1), advanced("Beta 3", "How long the running mean of squared gradients remembers.")
    ] = 0.99
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.02
    no_prox: Annotated[
        bool, advanced("Decay as AdamW", "Weight decay before the step in place of a proximal one after it.")
    ] = False
    log_every: LogEvery = 0
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None


SPEC = OptimizerSpec(
    settings=DAdaptAdan,
    label="D-Adapt Adan",
    rates=FINDS_ITS_RATE,
    has_one_rate=True,
)
