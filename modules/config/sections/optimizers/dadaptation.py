"""D-Adaptation (Defazio and Mishchenko 2023): optimizers that find their learning rate; set it to 1."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt

from modules.config.sections.optimizers.terms import (
    Beta1,
    Beta2,
    BiasCorrection,
    Decouple,
    Epsilon,
    FirstDistance,
    GrowthRate,
    LogEvery,
    Momentum,
    Sharded,
    WeightDecay,
    advanced,
)
from modules.settings.field import Section


class DAdaptAdaGrad(Section):
    """AdaGrad that finds its learning rate."""

    name: Literal["dadapt_ada_grad"] = "dadapt_ada_grad"
    momentum: Momentum = 0.0
    log_every: LogEvery = 0
    weight_decay: WeightDecay = 0.0
    eps: Annotated[
        float, Ge(0), Le(1), advanced("Epsilon", "Keeps the division by small gradients finite; 0 leaves it be.")
    ] = 0.0
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None


class DAdaptAdan(Section):
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


class DAdaptAdam(Section):
    """Adam that finds its learning rate."""

    name: Literal["dadapt_adam"] = "dadapt_adam"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    log_every: LogEvery = 0
    decouple: Decouple = False
    use_bias_correction: BiasCorrection = False
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None
    fsdp_in_use: Sharded = False


class DAdaptSgd(Section):
    """Gradient descent that finds its learning rate."""

    name: Literal["dadapt_sgd"] = "dadapt_sgd"
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    log_every: LogEvery = 0
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None
    fsdp_in_use: Sharded = False


class DAdaptLion(Section):
    """Lion that finds its learning rate."""

    name: Literal["dadapt_lion"] = "dadapt_lion"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    log_every: LogEvery = 0
    d0: FirstDistance = 1e-6
    fsdp_in_use: Sharded = False
