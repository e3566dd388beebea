"""Optimizers derived from Adam, of the packages pytorch-optimizer and bitsandbytes.

They are not next to AdamW because the window would build the classes of all of them at each start.
"""

from typing import Annotated, Literal

from annotated_types import Ge, Interval, Le

from modules.optim import rates
from modules.optim.spec import OptimizerSettings, Shape, averages, by_name
from modules.optim.terms import fields
from modules.optim.terms.shared_records import OF_BITS, bits_state, eight_bits_of, pytorch_optimizer_spec
from modules.settings.field import When, advanced_setting
from modules.settings.shared_types import Decay, Fraction, PositiveFraction, UpTo1000


class _AdEMAMixFields(OptimizerSettings):
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    beta3: Annotated[
        Decay, advanced_setting("Beta 3", "Decay of the slow average of gradients: 0.9999 averages about 10,000 steps.")
    ] = 0.9999
    eps: fields.Epsilon = 1e-8
    alpha: Annotated[
        UpTo1000,
        advanced_setting("Alpha", "The weight of the slow average of gradients relative to the fast one; 5 is usual."),
    ] = 5.0
    weight_decay: fields.WeightDecay = 0.01


class AdEMAMix(_AdEMAMixFields):
    """AdEMAMix (Pagliardini et al. 2024): a fast and a slow running average of gradients."""

    name: Literal["ademamix"] = "ademamix"
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
    fused_back_pass: fields.FusedBackPass = False


class AdEMAMix8bit(_AdEMAMixFields):
    """AdEMAMix with 8-bit state."""

    name: Literal["ademamix_8bit"] = "ademamix_8bit"
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


class AdaBelief(fields.AdamFields):
    """AdaBelief (Zhuang et al. 2020): Adam with larger steps where gradients match their running average."""

    name: Literal["adabelief"] = "adabelief"
    eps: fields.Epsilon = 1e-16
    amsgrad: fields.AmsGrad = False
    decoupled_decay: fields.DecoupledDecay = True
    fixed_decay: fields.FixedDecay = False
    rectify: fields.Rectify = True
    degenerated_to_sgd: fields.PlainWhileUnsure = True
    fused_back_pass: fields.FusedBackPass = False


class Adopt(OptimizerSettings):
    """ADOPT (Taniguchi et al. 2024): Adam that converges with any beta 2."""

    name: Literal["adopt"] = "adopt"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.9999
    weight_decay: fields.WeightDecay = 0.0
    decoupled_decay: fields.DecoupledDecay = False
    fixed_decay: fields.FixedDecay = False
    cautious: fields.Cautious = False
    eps: fields.Epsilon = 1e-6
    fused_back_pass: fields.FusedBackPass = False


class Aida(OptimizerSettings):
    """Aida (Zhang et al. 2022): Adam with step sizes that differ less between layers."""

    name: Literal["aida"] = "aida"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    k: Annotated[
        int,
        *Interval(ge=0, le=100),
        advanced_setting("Projections (k)", "How often the average and the gradient are projected onto each other."),
    ] = 2
    xi: Annotated[
        PositiveFraction, advanced_setting("Xi", "Keeps the division in the projections finite; rarely changed.")
    ] = 1e-20
    weight_decay: fields.WeightDecay = 0.0
    decoupled_decay: fields.DecoupledDecay = False
    fixed_decay: fields.FixedDecay = False
    rectify: fields.Rectify = False
    n_sma_threshold: Annotated[
        int,
        Ge(5),  # below, the rectified rate is the root of a negative number
        Le(1000),
        advanced_setting(
            "SMA threshold",
            "The length of the squared-gradient average from which its estimate is used.",
            applies_when=When("rectify", (True,)),
        ),
    ] = 5
    degenerated_to_sgd: fields.PlainWhileUnsure = True
    ams_bound: fields.AmsGrad = False
    r: Annotated[
        Fraction,
        advanced_setting(
            "AdaNorm decay (r)", "Decay of the average of gradient norms.", applies_when=When("adanorm", (True,))
        ),
    ] = 0.95
    adanorm: Annotated[
        bool, advanced_setting("AdaNorm", "Scales unusually small gradients up to their average norm.")
    ] = False
    adam_debias: fields.AdamDebias = False
    eps: fields.Epsilon = 1e-8
    fused_back_pass: fields.FusedBackPass = False


class Yogi(OptimizerSettings):
    """Yogi (Zaheer et al. 2018): Adam with step sizes that grow slowly."""

    name: Literal["yogi"] = "yogi"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    weight_decay: fields.WeightDecay = 0.0
    decoupled_decay: fields.DecoupledDecay = True
    fixed_decay: fields.FixedDecay = False
    adam_debias: fields.AdamDebias = False
    initial_accumulator: Annotated[
        UpTo1000,
        advanced_setting(
            "Initial accumulator",
            "The start value of both running averages: a larger value makes the first steps smaller.",
        ),
    ] = 1e-6
    eps: fields.Epsilon = 1e-3
    fused_back_pass: fields.FusedBackPass = False


# The fast and the slow average of gradients, and the average of their squares.
ADEMAMIX = pytorch_optimizer_spec(
    AdEMAMix,
    "AdEMAMix",
    state_bytes=bits_state(3),
    lacks=("is_paged",),
    **OF_BITS,
)

ADEMAMIX_8BIT = eight_bits_of(ADEMAMIX, AdEMAMix8bit, "AdEMAMix8bit", 3, lacks=("is_paged",))

ADABELIEF = pytorch_optimizer_spec(AdaBelief, "AdaBelief", arguments=by_name({"amsgrad": "ams_bound"}))

ADOPT = pytorch_optimizer_spec(Adopt, "ADOPT")


def _aida_state_bytes(settings: Aida, shape: Shape) -> float:
    return averages(2)(settings, shape) + (4.0 if settings.adanorm else 0.0)


AIDA = pytorch_optimizer_spec(
    Aida,
    "Aida",
    arguments=by_name({"r": "adanorm_r"}),
    state_bytes=_aida_state_bytes,
    waits_per_weight=lambda settings: settings.adanorm,
)

YOGI = pytorch_optimizer_spec(Yogi, "Yogi", rates=rates.LARGER, lacks=("r", "adanorm"))
