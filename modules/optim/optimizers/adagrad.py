"""AdaGrad (Duchi et al. 2011): the learning rate of each weight falls with its past gradients."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.bits import BITSANDBYTES, Smallest8BitOf32, StateBits, bits_state_bytes, in_8_bits
from modules.optim.terms.general import Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.kin import FirstSum, RateDecay
from modules.optim.terms.removed import ALWAYS_BLOCKS, PERCENTILE_CLIPPING
from modules.system.package import Package


class Adagrad(OptimizerSettings):
    """AdaGrad (Duchi et al. 2011): the learning rate of each weight falls with its past gradients."""

    name: Literal["adagrad"] = "adagrad"
    lr_decay: RateDecay = 0.0
    weight_decay: WeightDecay = 0.0
    initial_accumulator_value: FirstSum = 0.0
    eps: Epsilon = 1e-10
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Adagrad) -> dict[str, Any]:
    return {
        "lr_decay": settings.lr_decay,
        "weight_decay": settings.weight_decay,
        "initial_accumulator_value": settings.initial_accumulator_value,
        "eps": settings.eps,
        "optim_bits": int(settings.optim_bits),
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: Adagrad, shape: Shape) -> float:
    return bits_state_bytes(1, shape, bits=settings.optim_bits, min_8bit_size=settings.min_8bit_size)


def _packages(settings: Adagrad) -> tuple[Package, ...]:
    return (BITSANDBYTES,) if settings.optim_bits == "8" else ()


SPEC = OptimizerSpec(
    settings=Adagrad,
    label="AdaGrad",
    rates=LARGER_RATES,
    state_bytes=_state_bytes,
    waits_per_weight=in_8_bits,
    reads_memory_in_order=in_8_bits,
    factory="modules.optim.classes.eight_bit:adagrad",
    library="torch",
    arguments=_arguments,
    more_packages=_packages,
    removed={"percentile_clipping": PERCENTILE_CLIPPING, "block_wise": ALWAYS_BLOCKS},
)
