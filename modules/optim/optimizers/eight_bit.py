"""The 8-bit twins of other optimizers, of bitsandbytes."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import LARGER_RATES, PLAIN_RATES, SIGN_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms import fields, removed
from modules.optim.terms.state_bits import BITSANDBYTES, EightBitAdam, bits_state, bitsandbytes_spec


class AdamW8bit(EightBitAdam):
    """AdamW with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adamw_8bit"] = "adamw_8bit"
    weight_decay: fields.WeightDecay = 0.01


class Adam8bit(EightBitAdam):
    """Adam with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adam_8bit"] = "adam_8bit"


class Lion8bit(OptimizerSettings):
    """Lion with 8-bit momentum."""

    name: Literal["lion_8bit"] = "lion_8bit"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    weight_decay: fields.WeightDecay = 0.0
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


class AdEMAMix8bit(OptimizerSettings):
    """AdEMAMix with 8-bit state."""

    name: Literal["ademamix_8bit"] = "ademamix_8bit"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    beta3: fields.SlowMeanBeta = 0.9999
    eps: fields.Epsilon = 1e-8
    alpha: fields.EmaAlpha = 5.0
    weight_decay: fields.WeightDecay = 0.01
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


class Sgd8bit(OptimizerSettings):
    """SGD with 8-bit momentum."""

    name: Literal["sgd_8bit"] = "sgd_8bit"
    momentum: fields.Momentum = 0.0
    weight_decay: fields.WeightDecay = 0.0
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


class RmsProp8bit(OptimizerSettings):
    """RMSprop with 8-bit state."""

    name: Literal["rmsprop_8bit"] = "rmsprop_8bit"
    alpha: fields.PositiveSmoothing = 0.99
    eps: fields.Epsilon = 1e-8
    weight_decay: fields.WeightDecay = 0.0
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


class Adagrad8bit(OptimizerSettings):
    """AdaGrad with 8-bit state."""

    name: Literal["adagrad_8bit"] = "adagrad_8bit"
    weight_decay: fields.WeightDecay = 0.0
    eps: fields.Epsilon = 1e-10
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


_OF_ADAM = {
    "optim_bits": removed.ALWAYS_8_BITS,
    "is_paged": removed.PAGED,
    **removed.not_in_bitsandbytes(amsgrad=False),
    **removed.OF_BITSANDBYTES,
}

ADAMW_8BIT = bitsandbytes_spec(AdamW8bit, "AdamW 8-bit", "AdamW8bit", bits_state(2), removed=_OF_ADAM)

ADAM_8BIT = bitsandbytes_spec(Adam8bit, "Adam 8-bit", "Adam8bit", bits_state(2), removed=_OF_ADAM)

LION_8BIT = bitsandbytes_spec(
    Lion8bit,
    "Lion 8-bit",
    "Lion8bit",
    bits_state(1),
    rates=SIGN_RATES,
    removed=removed.OF_BITSANDBYTES | {"is_paged": removed.PAGED},
)

# The fast and the slow average of gradients, and the average of their squares.
ADEMAMIX_8BIT = bitsandbytes_spec(
    AdEMAMix8bit,
    "AdEMAMix 8-bit",
    "AdEMAMix8bit",
    bits_state(3),
    removed={"is_paged": removed.PAGED},
)


def _has_momentum(settings: Sgd8bit) -> bool:
    return settings.momentum > 0


# Without momentum there is no state, and torch's SGD steps.
SGD_8BIT = OptimizerSpec(
    settings=Sgd8bit,
    label="SGD 8-bit",
    factory="modules.optim.classes.eight_bit:sgd",
    library="torch",
    rates=PLAIN_RATES,
    state_bytes=lambda settings, shape: bits_state(1)(settings, shape) if settings.momentum else 0.0,
    waits_per_weight=_has_momentum,
    reads_memory_in_order=_has_momentum,
    packages=(BITSANDBYTES,),
    removed=removed.OF_BITSANDBYTES | removed.not_in_bitsandbytes(dampening=0, nesterov=False),
)

RMSPROP_8BIT = bitsandbytes_spec(
    RmsProp8bit,
    "RMSprop 8-bit",
    "RMSprop8bit",
    bits_state(1),
    removed=removed.OF_BITSANDBYTES | removed.not_in_bitsandbytes(momentum=0, centered=False),
)

ADAGRAD_8BIT = bitsandbytes_spec(
    Adagrad8bit,
    "AdaGrad 8-bit",
    "Adagrad8bit",
    bits_state(1),
    rates=LARGER_RATES,
    removed={
        "lr_decay": removed.NO_RATE_DECAY,
        "optim_bits": removed.ALWAYS_8_BITS,
        **removed.not_in_bitsandbytes(initial_accumulator_value=0),
        **removed.OF_BITSANDBYTES,
    },
)
