"""The 8-bit twins of other optimizers, of bitsandbytes."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import LARGER_RATES, PLAIN_RATES, SIGN_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms.arguments import (
    ALWAYS_8_BITS,
    ALWAYS_BLOCKS,
    NO_AMSGRAD,
    NO_CENTERING,
    NO_DAMPENING,
    NO_FIRST_SUM,
    NO_MOMENTUM,
    NO_NESTEROV,
    NO_RATE_DECAY,
    PAGED,
    PERCENTILE_CLIPPING,
    by_name,
)
from modules.optim.terms.general import Beta1, Beta2, EmaAlpha, Epsilon, FusedBackPass, Momentum, WeightDecay
from modules.optim.terms.shared_fields import (
    BITSANDBYTES,
    EightBitAdam,
    PositiveSmoothing,
    SlowMeanBeta,
    Smallest8Bit,
    bits_state,
    bitsandbytes_spec,
)


class AdamW8bit(EightBitAdam):
    """AdamW with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adamw_8bit"] = "adamw_8bit"
    weight_decay: WeightDecay = 0.01


class Adam8bit(EightBitAdam):
    """Adam with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adam_8bit"] = "adam_8bit"


class Lion8bit(OptimizerSettings):
    """Lion with 8-bit momentum."""

    name: Literal["lion_8bit"] = "lion_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


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


class Sgd8bit(OptimizerSettings):
    """SGD with 8-bit momentum."""

    name: Literal["sgd_8bit"] = "sgd_8bit"
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


class RmsProp8bit(OptimizerSettings):
    """RMSprop with 8-bit state."""

    name: Literal["rmsprop_8bit"] = "rmsprop_8bit"
    alpha: PositiveSmoothing = 0.99
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


class Adagrad8bit(OptimizerSettings):
    """AdaGrad with 8-bit state."""

    name: Literal["adagrad_8bit"] = "adagrad_8bit"
    weight_decay: WeightDecay = 0.0
    eps: Epsilon = 1e-10
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


_ALWAYS = {"percentile_clipping": PERCENTILE_CLIPPING, "block_wise": ALWAYS_BLOCKS}
_OF_ADAM = {"amsgrad": NO_AMSGRAD, "optim_bits": ALWAYS_8_BITS, **_ALWAYS, "is_paged": PAGED}


ADAMW_8BIT = bitsandbytes_spec(AdamW8bit, "AdamW 8-bit", "AdamW8bit", bits_state(2), removed=_OF_ADAM)

ADAM_8BIT = bitsandbytes_spec(Adam8bit, "Adam 8-bit", "Adam8bit", bits_state(2), removed=_OF_ADAM)

LION_8BIT = bitsandbytes_spec(
    Lion8bit, "Lion 8-bit", "Lion8bit", bits_state(1), rates=SIGN_RATES, removed=_ALWAYS | {"is_paged": PAGED}
)

# The fast and the slow average of gradients, and the average of their squares.
ADEMAMIX_8BIT = bitsandbytes_spec(
    AdEMAMix8bit,
    "AdEMAMix 8-bit",
    "AdEMAMix8bit",
    bits_state(3),
    arguments=by_name(num_betas=3),
    removed={"is_paged": PAGED},
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
    removed={"dampening": NO_DAMPENING, "nesterov": NO_NESTEROV, **_ALWAYS},
)

RMSPROP_8BIT = bitsandbytes_spec(
    RmsProp8bit,
    "RMSprop 8-bit",
    "RMSprop8bit",
    bits_state(1),
    removed={"momentum": NO_MOMENTUM, "centered": NO_CENTERING, **_ALWAYS},
)

ADAGRAD_8BIT = bitsandbytes_spec(
    Adagrad8bit,
    "AdaGrad 8-bit",
    "Adagrad8bit",
    bits_state(1),
    rates=LARGER_RATES,
    removed={
        "lr_decay": NO_RATE_DECAY,
        "initial_accumulator_value": NO_FIRST_SUM,
        "optim_bits": ALWAYS_8_BITS,
        **_ALWAYS,
    },
)
