"""Lion with 8-bit momentum."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, Smallest8Bit, bits_state_bytes
from modules.optim.terms.general import Beta1, Beta2, FusedBackPass, WeightDecay
from modules.optim.terms.removed import ALWAYS_BLOCKS, PAGED, PERCENTILE_CLIPPING


class Lion8bit(OptimizerSettings):
    """Lion with 8-bit momentum."""

    name: Literal["lion_8bit"] = "lion_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Lion8bit) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "weight_decay": settings.weight_decay,
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: Lion8bit, shape: Shape) -> float:
    return bits_state_bytes(1, shape, min_8bit_size=settings.min_8bit_size)


SPEC = OptimizerSpec(
    settings=Lion8bit,
    label="Lion 8-bit",
    factory="bitsandbytes:optim.Lion8bit",
    arguments=_arguments,
    rates=SIGN_RATES,
    state_bytes=_state_bytes,
    waits_per_weight=always,
    reads_memory_in_order=always,
    packages=(BITSANDBYTES,),
    removed={"percentile_clipping": PERCENTILE_CLIPPING, "block_wise": ALWAYS_BLOCKS, "is_paged": PAGED},
)
