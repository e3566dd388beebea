"""Lion, advanced."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.advanced import (
    ADV_OPTM,
    COMPILE,
    CautiousDecay,
    FactoredState,
    OrthogonalGradient,
    average_bytes,
    orthogonal,
)
from modules.optim.terms.general import Beta1, Beta2, FusedBackPass, WeightDecay, advanced
from modules.optim.terms.removed import Removed

_CLIPPING = Removed((), "adv-optm no longer has it. Use Clip grad norm.")


class LionAdv(OptimizerSettings):
    """Lion, advanced."""

    name: Literal["lion_adv"] = "lion_adv"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    nnmf_factor: FactoredState = False
    fused_back_pass: FusedBackPass = False
    orthogonal_gradient: OrthogonalGradient = False
    auto_kappa_p: Annotated[
        bool,
        advanced(
            "Auto kappa p",
            "Updates convolution kernels by the raw direction, everything else by its sign, as Lion does.",
        ),
    ] = True


def _arguments(settings: LionAdv) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "cautious_wd": settings.cautious_wd,
        "weight_decay": settings.weight_decay,
        "nnmf_factor": settings.nnmf_factor,
        "orthogonal_gradient": orthogonal(settings.orthogonal_gradient),
        "auto_kappa_p": settings.auto_kappa_p,
    }


def _state_bytes(settings: LionAdv, shape: Shape) -> float:
    return average_bytes(shape, factored=settings.nnmf_factor)


SPEC = OptimizerSpec(
    settings=LionAdv,
    label="Lion (advanced)",
    factory="modules.optim.classes.advanced:LionAdv",
    arguments=_arguments,
    state_bytes=_state_bytes,
    rates=SIGN_RATES,
    packages=(ADV_OPTM,),
    reads_memory_in_order=always,
    removed=COMPILE | {"clip_threshold": _CLIPPING},
)
