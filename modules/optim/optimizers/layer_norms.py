"""LAMB and LARS, whose updates follow the norm of each weight, of bitsandbytes."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import LARGER_RATES, PLAIN_RATES, OptimizerSettings, OptimizerSpec, always
from modules.optim.terms.arguments import (
    ALWAYS_BLOCKS,
    ALWAYS_CORRECTED,
    ALWAYS_DECOUPLED,
    NO_AMSGRAD,
    NO_DAMPENING,
    NO_LIMIT,
    NO_NESTEROV,
    PERCENTILE_CLIPPING,
    by_name,
)
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.shared_fields import (
    EightBitAdam,
    LargestUpdate,
    PositiveMomentum,
    Smallest8Bit,
    Smallest8BitOf32,
    StateBits,
    bits_state,
    bitsandbytes_spec,
)


class Lamb(OptimizerSettings):
    """LAMB (You et al. 2020): Adam for very large batches, with updates limited by the norm of each weight tensor."""

    name: Literal["lamb"] = "lamb"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    max_unorm: LargestUpdate = 1.0
    fused_back_pass: FusedBackPass = False


class Lamb8bit(EightBitAdam):
    """LAMB with 8-bit state: the norm of a weight tensor limits its updates only where the state has 32 bits."""

    name: Literal["lamb_8bit"] = "lamb_8bit"


class Lars(OptimizerSettings):
    """LARS (You et al. 2017): SGD for very large batches, with updates limited by the norm of each weight tensor."""

    name: Literal["lars"] = "lars"
    momentum: PositiveMomentum = 0.9
    weight_decay: WeightDecay = 0.0
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    max_unorm: LargestUpdate = 0.02
    fused_back_pass: FusedBackPass = False


class Lars8bit(OptimizerSettings):
    """LARS with 8-bit momentum: the norm of a weight tensor limits its updates only where the state has 32 bits."""

    name: Literal["lars_8bit"] = "lars_8bit"
    momentum: PositiveMomentum = 0.9
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    max_unorm: LargestUpdate = 0.02
    fused_back_pass: FusedBackPass = False


_LAMB_REMOVED = {
    "bias_correction": ALWAYS_CORRECTED,
    "amsgrad": NO_AMSGRAD,
    "adam_w_mode": ALWAYS_DECOUPLED,
    "percentile_clipping": PERCENTILE_CLIPPING,
    "block_wise": ALWAYS_BLOCKS,
}
_LARS_REMOVED = {"dampening": NO_DAMPENING, "nesterov": NO_NESTEROV, "percentile_clipping": PERCENTILE_CLIPPING}


def _limits(settings: Any) -> bool:
    """Return whether an update is limited by the norm of its weight: one that is zero then stays zero."""
    return bool(settings.max_unorm > 0)


def _spec(settings: type[Any], label: str, name: str, num_arrays: int, **facts: Any) -> OptimizerSpec[Any]:
    """Return the record of one of them, whose state has the norm of the update, too."""
    return bitsandbytes_spec(settings, label, name, bits_state(num_arrays, has_norm=True), **facts)


LAMB = _spec(Lamb, "LAMB", "LAMB", 2, rates=LARGER_RATES, leaves_zeros=_limits, removed=_LAMB_REMOVED)

LAMB_8BIT = _spec(
    Lamb8bit,
    "LAMB 8-bit",
    "LAMB8bit",
    2,
    rates=LARGER_RATES,
    leaves_zeros=always,
    removed=_LAMB_REMOVED | {"max_unorm": NO_LIMIT},
)

_OF_LARS: dict[str, Any] = {
    "arguments": by_name(more=lambda _: {"lr": 1.0}),  # each group has its own
    "rates": PLAIN_RATES,
    "leaves_zeros": _limits,
    "removed": _LARS_REMOVED,
}

LARS = _spec(Lars, "LARS", "LARS", 1, **_OF_LARS)

LARS_8BIT = _spec(Lars8bit, "LARS 8-bit", "LARS8bit", 1, **_OF_LARS)
