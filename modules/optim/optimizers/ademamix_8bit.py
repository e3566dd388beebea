"""AdEMAMix with 8-bit state."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, Smallest8Bit, bits_state_bytes
from modules.optim.terms.general import Beta1, Beta2, EmaAlpha, Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.kin import SlowMeanBeta
from modules.optim.terms.removed import PAGED


class AdEMAMix8bit(OptimizerSettings):
    """AdEMAMix with 8-bit state."""

    name: Literal["ademamix_8bit"] = "ademamix_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: SlowMeanBeta = 0.9999
    eps: Epsilon = 1e-8
    alpha: EmaAlpha = 5.0
    weight_decay: WeightDecay = 0.01
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: AdEMAMix8bit) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2, settings.beta3),
        "eps": settings.eps,
        "alpha": settings.alpha,
        "weight_decay": settings.weight_decay,
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: AdEMAMix8bit, shape: Shape) -> float:
    """The fast and the slow average of gradients, and the average of their squares."""
    return bits_state_bytes(3, shape, min_8bit_size=settings.min_8bit_size)


SPEC = OptimizerSpec(
    settings=AdEMAMix8bit,
    label="AdEMAMix 8-bit",
    factory="bitsandbytes:optim.AdEMAMix8bit",
    arguments=_arguments,
    state_bytes=_state_bytes,
    waits_per_weight=always,
    reads_memory_in_order=always,
    packages=(BITSANDBYTES,),
    removed={"is_paged": PAGED},
)
