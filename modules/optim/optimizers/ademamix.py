"""AdEMAMix (Pagliardini et al. 2024): a fast and a slow running average of gradients."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.bits import BITSANDBYTES, Smallest8BitOf32, StateBits, bits_state_bytes, in_8_bits
from modules.optim.terms.general import Beta1, Beta2, EmaAlpha, Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.kin import PYTORCH_OPTIMIZER, SlowMeanBeta
from modules.optim.terms.removed import PAGED


class AdEMAMix(OptimizerSettings):
    """AdEMAMix (Pagliardini et al. 2024): a fast and a slow running average of gradients."""

    name: Literal["ademamix"] = "ademamix"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: SlowMeanBeta = 0.9999
    eps: Epsilon = 1e-8
    alpha: EmaAlpha = 5.0
    weight_decay: WeightDecay = 0.01
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: AdEMAMix) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2, settings.beta3),
        "eps": settings.eps,
        "alpha": settings.alpha,
        "weight_decay": settings.weight_decay,
        "min_8bit_size": settings.min_8bit_size if settings.optim_bits == "8" else None,
    }


def _state_bytes(settings: AdEMAMix, shape: Shape) -> float:
    """The fast and the slow average of gradients, and the average of their squares."""
    return bits_state_bytes(3, shape, bits=settings.optim_bits, min_8bit_size=settings.min_8bit_size)


SPEC = OptimizerSpec(
    settings=AdEMAMix,
    label="AdEMAMix",
    factory="modules.optim.classes.counting_by_weight:ademamix",
    arguments=_arguments,
    state_bytes=_state_bytes,
    waits_per_weight=in_8_bits,
    reads_memory_in_order=in_8_bits,
    packages=(PYTORCH_OPTIMIZER,),
    more_packages=lambda settings: (BITSANDBYTES,) if settings.optim_bits == "8" else (),
    removed={"is_paged": PAGED},
)
