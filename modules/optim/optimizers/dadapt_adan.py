"""Adan (Xie et al. 2022) that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Lt

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import Beta1, Epsilon, FirstDistance, GrowthRate, LogEvery, WeightDecay, advanced


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
    log_every: LogEvery = 0
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None


SPEC = OptimizerSpec(
    settings=DAdaptAdan,
    label="D-Adapt Adan",
    rates=FINDS_ITS_RATE,
    has_one_rate=True,
)
