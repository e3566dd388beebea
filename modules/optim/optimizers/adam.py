"""Adam and AdamW as torch has them (AdamW is the window's default), and their variants of other libraries."""

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Le

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec, Shape, averages
from modules.optim.terms import fields, removed
from modules.optim.terms.arguments import by_name
from modules.optim.terms.removed import RemovedSetting
from modules.optim.terms.state_bits import bits_state, in_8_bits, packages_of_bits
from modules.settings.field import When, advanced_setting
from modules.system.factories import Package


class _TorchAdam(OptimizerSettings):
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    eps: fields.Epsilon = 1e-8
    weight_decay: fields.WeightDecay = 0.01
    amsgrad: fields.AmsGrad = False
    foreach: fields.ForeachUnlessFused = False
    maximize: fields.Maximize = False
    fused: fields.Fused = True
    fused_back_pass: fields.FusedBackPass = False


class AdamW(_TorchAdam):
    """AdamW (Loshchilov and Hutter 2019): the usual choice."""

    name: Literal["adamw"] = "adamw"


class Adam(_TorchAdam):
    """Adam (Kingma and Ba 2015): weight decay is added to the gradients (L2)."""

    name: Literal["adam"] = "adam"
    weight_decay: fields.WeightDecay = 0.0


def _spec(settings: type[Any], label: str, factory: str) -> OptimizerSpec[Any]:
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=factory,
        is_elementwise=True,
        arguments=by_name(more=lambda s: {"foreach": s.foreach and not s.fused}),
        skips_on_device=lambda s: bool(s.fused),
        removed={"capturable": removed.CAPTURABLE, "differentiable": removed.DIFFERENTIABLE},
    )


ADAMW = _spec(AdamW, "AdamW", "torch.optim:AdamW")

ADAM = _spec(Adam, "Adam", "torch.optim:Adam")


# Optimizers derived from Adam, of the package pytorch-optimizer.


class AdEMAMix(OptimizerSettings):
    """AdEMAMix (Pagliardini et al. 2024): a fast and a slow running average of gradients."""

    name: Literal["ademamix"] = "ademamix"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    beta3: fields.SlowMeanBeta = 0.9999
    eps: fields.Epsilon = 1e-8
    alpha: fields.EmaAlpha = 5.0
    weight_decay: fields.WeightDecay = 0.01
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
    fused_back_pass: fields.FusedBackPass = False


class AdaBelief(OptimizerSettings):
    """AdaBelief (Zhuang et al. 2020): Adam with larger steps where gradients match their running average."""

    name: Literal["adabelief"] = "adabelief"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    eps: fields.Epsilon = 1e-16
    weight_decay: fields.WeightDecay = 0.0
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
        float, Gt(0), Le(1), advanced_setting("Xi", "Keeps the division in the projections finite; rarely changed.")
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
    r: fields.NormMean = 0.95
    adanorm: fields.AdaNorm = False
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
        float,
        *Interval(ge=0, le=1000),
        advanced_setting(
            "Initial accumulator",
            "The start value of both running averages: a larger value makes the first steps smaller.",
        ),
    ] = 1e-6
    eps: fields.Epsilon = 1e-3
    fused_back_pass: fields.FusedBackPass = False


PYTORCH_OPTIMIZER = Package("pytorch_optimizer", distribution="pytorch-optimizer")


def pytorch_optimizer_spec(settings: type[Any], label: str, **facts: Any) -> OptimizerSpec[Any]:
    """Return the record of an optimizer of the package pytorch-optimizer; its factory has the name in files."""
    name = settings.model_fields["name"].default
    factory = f"modules.optim.classes.counting_by_weight:{name}"
    return OptimizerSpec(settings=settings, label=label, factory=factory, packages=(PYTORCH_OPTIMIZER,), **facts)


# The fast and the slow average of gradients, and the average of their squares.
ADEMAMIX = pytorch_optimizer_spec(
    AdEMAMix,
    "AdEMAMix",
    arguments=by_name(
        without={"optim_bits"},
        more=lambda s: {"min_8bit_size": s.min_8bit_size if s.optim_bits == "8" else None},
    ),
    state_bytes=bits_state(3),
    waits_per_weight=in_8_bits,
    reads_memory_in_order=in_8_bits,
    more_packages=packages_of_bits,
    removed={"is_paged": removed.PAGED},
)

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

_ADANORM = "pytorch-optimizer no longer has AdaNorm for Yogi."
YOGI = pytorch_optimizer_spec(
    Yogi,
    "Yogi",
    rates=LARGER_RATES,
    removed={"r": RemovedSetting((0.95,), _ADANORM), "adanorm": RemovedSetting((False,), _ADANORM)},
)
