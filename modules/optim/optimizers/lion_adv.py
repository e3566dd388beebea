"""Lion, advanced."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt, Le

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms.advanced import CautiousDecay, Compile, FactoredState, OrthogonalGradient
from modules.optim.terms.general import Beta1, Beta2, FusedBackPassNotYet, WeightDecay, advanced


class LionAdv(OptimizerSettings):
    """Lion, advanced."""

    name: Literal["lion_adv"] = "lion_adv"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    clip_threshold: Annotated[
        float | None,
        Gt(0),
        Le(10_000),
        advanced("Clip threshold", "Scales the gradient of a tensor down to this norm.", empty_means="no clipping"),
    ] = None
    nnmf_factor: FactoredState = False
    compile: Compile = False
    fused_back_pass: FusedBackPassNotYet = False
    orthogonal_gradient: OrthogonalGradient = False
    auto_kappa_p: Annotated[
        bool,
        advanced(
            "Auto kappa p", "Chooses the shape of the update by the kind of layer: the sign or the raw direction."
        ),
    ] = True


SPEC = OptimizerSpec(
    settings=LionAdv,
    label="Lion (advanced)",
    rates=SIGN_RATES,
)
