"""AdaBelief (Zhuang et al. 2020): Adam with larger steps where gradients match their running average."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import AmsGrad, Beta1, Beta2, DecoupledDecay, Epsilon, FixedDecay, WeightDecay
from modules.optim.terms.kin import PlainWhileUnsure, Rectify


class AdaBelief(OptimizerSettings):
    """AdaBelief (Zhuang et al. 2020): Adam with larger steps where gradients match their running average."""

    name: Literal["adabelief"] = "adabelief"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-16
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False
    rectify: Rectify = True
    degenerated_to_sgd: PlainWhileUnsure = True


SPEC = OptimizerSpec(
    settings=AdaBelief,
    label="AdaBelief",
)
