"""Adam and AdamW as torch has them (AdamW is the window's default), and their variants of other libraries."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Le

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec, Shape, averages
from modules.optim.terms.arguments import CAPTURABLE, DIFFERENTIABLE, PAGED, RemovedSetting, by_name
from modules.optim.terms.general import (
    AmsGrad,
    Beta1,
    Beta2,
    Cautious,
    DecoupledDecay,
    EmaAlpha,
    Epsilon,
    FixedDecay,
    ForeachUnlessFused,
    Fused,
    FusedBackPass,
    Maximize,
    WeightDecay,
)
from modules.optim.terms.shared_fields import (
    PYTORCH_OPTIMIZER,
    AdamDebias,
    AdaNorm,
    NormMean,
    PlainWhileUnsure,
    Rectify,
    SlowMeanBeta,
    Smallest8BitOf32,
    StateBits,
    bits_state,
    in_8_bits,
    packages_of_bits,
)
from modules.settings.field import When, advanced_setting


class _TorchAdam(OptimizerSettings):
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.01
    amsgrad: AmsGrad = False
    foreach: ForeachUnlessFused = False
    maximize: Maximize = False
    fused: Fused = True
    fused_back_pass: FusedBackPass = False


class AdamW(_TorchAdam):
    """AdamW (Loshchilov and Hutter 2019): the usual choice."""

    name: Literal["adamw"] = "adamw"


class Adam(_TorchAdam):
    """Adam (Kingma and Ba 2015): weight decay is added to the gradients (L2)."""

    name: Literal["adam"] = "adam"
    weight_decay: WeightDecay = 0.0


def _spec(settings: type[Any], label: str, factory: str) -> OptimizerSpec[Any]:
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=factory,
        is_elementwise=True,
        arguments=by_name(more=lambda s: {"foreach": s.foreach and not s.fused}),
        skips_on_device=lambda s: bool(s.fused),
        removed={"capturable": CAPTURABLE, "differentiable": DIFFERENTIABLE},
    )


ADAMW = _spec(AdamW, "AdamW", "torch.optim:AdamW")

ADAM = _spec(Adam, "Adam", "torch.optim:Adam")


# Optimizers derived from Adam, of the package pytorch-optimizer.
_ADANORM = "pytorch-optimizer no longer has AdaNorm for Yogi."


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


class AdaBelief(OptimizerSettings):
    """AdaBelief (Zhuang et al. 2020): Adam with larger steps where gradients match their running average."""

    name: Literal["adabelief"] = "adabelief"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-16
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False
    rectify: Rectify = True
    degenerated_to_sgd: PlainWhileUnsure = True
    fused_back_pass: FusedBackPass = False


class Adopt(OptimizerSettings):
    """ADOPT (Taniguchi et al. 2024): Adam that converges with any beta 2."""

    name: Literal["adopt"] = "adopt"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.9999
    weight_decay: WeightDecay = 0.0
    decoupled_decay: DecoupledDecay = False
    fixed_decay: FixedDecay = False
    cautious: Cautious = False
    eps: Epsilon = 1e-6
    fused_back_pass: FusedBackPass = False


class Aida(OptimizerSettings):
    """Aida (Zhang et al. 2022): Adam with step sizes that differ less between layers."""

    name: Literal["aida"] = "aida"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    k: Annotated[
        int,
        *Interval(ge=0, le=100),
        advanced_setting("Projections (k)", "How often the average and the gradient are projected onto each other."),
    ] = 2
    xi: Annotated[
        float, Gt(0), Le(1), advanced_setting("Xi", "Keeps the division in the projections finite; rarely changed.")
    ] = 1e-20
    weight_decay: WeightDecay = 0.0
    decoupled_decay: DecoupledDecay = False
    fixed_decay: FixedDecay = False
    rectify: Rectify = False
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
    degenerated_to_sgd: PlainWhileUnsure = True
    ams_bound: AmsGrad = False
    r: NormMean = 0.95
    adanorm: AdaNorm = False
    adam_debias: AdamDebias = False
    eps: Epsilon = 1e-8
    fused_back_pass: FusedBackPass = False


class Yogi(OptimizerSettings):
    """Yogi (Zaheer et al. 2018): Adam with step sizes that grow slowly."""

    name: Literal["yogi"] = "yogi"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False
    adam_debias: AdamDebias = False
    initial_accumulator: Annotated[
        float,
        *Interval(ge=0, le=1000),
        advanced_setting(
            "Initial accumulator",
            "The start value of both running averages: a larger value makes the first steps smaller.",
        ),
    ] = 1e-6
    eps: Epsilon = 1e-3
    fused_back_pass: FusedBackPass = False


# The fast and the slow average of gradients, and the average of their squares.
ADEMAMIX = OptimizerSpec(
    settings=AdEMAMix,
    label="AdEMAMix",
    factory="modules.optim.classes.counting_by_weight:ademamix",
    arguments=by_name(
        num_betas=3,
        without={"optim_bits"},
        more=lambda s: {"min_8bit_size": s.min_8bit_size if s.optim_bits == "8" else None},
    ),
    state_bytes=bits_state(3),
    waits_per_weight=in_8_bits,
    reads_memory_in_order=in_8_bits,
    packages=(PYTORCH_OPTIMIZER,),
    more_packages=packages_of_bits,
    removed={"is_paged": PAGED},
)

ADABELIEF = OptimizerSpec(
    settings=AdaBelief,
    label="AdaBelief",
    factory="modules.optim.classes.counting_by_weight:adabelief",
    arguments=by_name({"amsgrad": "ams_bound"}),
    packages=(PYTORCH_OPTIMIZER,),
)

ADOPT = OptimizerSpec(
    settings=Adopt,
    label="ADOPT",
    factory="modules.optim.classes.counting_by_weight:adopt",
    packages=(PYTORCH_OPTIMIZER,),
)


def _aida_state_bytes(settings: Aida, shape: Shape) -> float:
    return averages(2)(settings, shape) + (4.0 if settings.adanorm else 0.0)


AIDA = OptimizerSpec(
    settings=Aida,
    label="Aida",
    factory="modules.optim.classes.counting_by_weight:aida",
    arguments=by_name({"r": "adanorm_r"}),
    state_bytes=_aida_state_bytes,
    waits_per_weight=lambda settings: settings.adanorm,
    packages=(PYTORCH_OPTIMIZER,),
)

YOGI = OptimizerSpec(
    settings=Yogi,
    label="Yogi",
    factory="modules.optim.classes.counting_by_weight:yogi",
    rates=LARGER_RATES,
    packages=(PYTORCH_OPTIMIZER,),
    removed={"r": RemovedSetting((0.95,), _ADANORM), "adanorm": RemovedSetting((False,), _ADANORM)},
)
