"""LAMB and LARS, whose updates follow the norm of each weight, of bitsandbytes."""

from typing import Any, Literal

from modules.optim.spec import LARGER_RATES, PLAIN_RATES, OptimizerSettings, always
from modules.optim.terms import fields, removed
from modules.optim.terms.arguments import by_name
from modules.optim.terms.removed import RemovedSetting
from modules.optim.terms.shared_records import AdamFields, EightBitAdam, bitsandbytes_spec


class Lamb(AdamFields):
    """LAMB (You et al. 2020): Adam for very large batches, with updates limited by the norm of each weight tensor."""

    name: Literal["lamb"] = "lamb"
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
    max_unorm: fields.LargestUpdate = 1.0
    fused_back_pass: fields.FusedBackPass = False


class Lamb8bit(EightBitAdam):
    """LAMB with 8-bit state: the norm of a weight tensor limits its updates only where the state has 32 bits."""

    name: Literal["lamb_8bit"] = "lamb_8bit"


class Lars(OptimizerSettings):
    """LARS (You et al. 2017): SGD for very large batches, with updates limited by the norm of each weight tensor."""

    name: Literal["lars"] = "lars"
    momentum: fields.PositiveMomentum = 0.9
    weight_decay: fields.WeightDecay = 0.0
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
    max_unorm: fields.LargestUpdate = 0.02
    fused_back_pass: fields.FusedBackPass = False


class Lars8bit(OptimizerSettings):
    """LARS with 8-bit momentum: the norm of a weight tensor limits its updates only where the state has 32 bits."""

    name: Literal["lars_8bit"] = "lars_8bit"
    momentum: fields.PositiveMomentum = 0.9
    weight_decay: fields.WeightDecay = 0.0
    min_8bit_size: fields.Smallest8Bit = 4096
    max_unorm: fields.LargestUpdate = 0.02
    fused_back_pass: fields.FusedBackPass = False


_LAMB_REMOVED = {
    "bias_correction": RemovedSetting((True,), "bitsandbytes corrects the averages for starting at zero, always."),
    "adam_w_mode": RemovedSetting((True,), "bitsandbytes applies weight decay to the weights, always."),
    **removed.OF_BITSANDBYTES,
    **removed.not_in_bitsandbytes(amsgrad=False),
}
_LARS_REMOVED = {"percentile_clipping": removed.PERCENTILE_CLIPPING} | removed.not_in_bitsandbytes(
    dampening=0, nesterov=False
)


def _limits(settings: Any) -> bool:
    """Return whether an update is limited by the norm of its weight: one that is zero then stays zero."""
    return bool(settings.max_unorm > 0)


LAMB = bitsandbytes_spec(
    Lamb, "LAMB", "LAMB", 2, has_norm=True, rates=LARGER_RATES, leaves_zeros=_limits, removed=_LAMB_REMOVED
)

LAMB_8BIT = bitsandbytes_spec(
    Lamb8bit,
    "LAMB 8-bit",
    "LAMB8bit",
    2,
    has_norm=True,
    rates=LARGER_RATES,
    leaves_zeros=always,
    removed=_LAMB_REMOVED
    | {"max_unorm": RemovedSetting((1, 0.02), "bitsandbytes limits updates only where the state has 32 bits.")},
)

_OF_LARS: dict[str, Any] = {
    "has_norm": True,
    "arguments": by_name(more=lambda _: {"lr": 1.0}),  # each group has its own
    "rates": PLAIN_RATES,
    "leaves_zeros": _limits,
    "removed": _LARS_REMOVED,
}

LARS = bitsandbytes_spec(Lars, "LARS", "LARS", 1, **_OF_LARS)

LARS_8BIT = bitsandbytes_spec(Lars8bit, "LARS 8-bit", "LARS8bit", 1, **_OF_LARS)
