"""ADOPT (Taniguchi et al. 2024): Adam that converges with any beta 2."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    Cautious,
    DecoupledDecay,
    Epsilon,
    FixedDecay,
    FusedBackPass,
    WeightDecay,
)
from modules.optim.terms.kin import PYTORCH_OPTIMIZER


class Adopt(OptimizerSettings):
    """ADOPT (Taniguchi et al. 2024): Adam that converges with any beta 2."""

    name: Literal["adopt"] = "adopt"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.9999
    weight_decay: WeightDecay = 0.0
    decoupled_decay: DecoupledDecay = False
    fixed_decay: FixedDecay = False
    cautious: Cautious = False
    eps: Epsilon = 1e-6
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Adopt) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "weight_decouple": settings.decoupled_decay,
        "fixed_decay": settings.fixed_decay,
        "cautious": settings.cautious,
    }


SPEC = OptimizerSpec(
    settings=Adopt,
    label="ADOPT",
    factory="modules.optim.classes.counting_by_weight:adopt",
    arguments=_arguments,
    packages=(PYTORCH_OPTIMIZER,),
)
