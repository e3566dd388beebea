"""Muon (Jordan et al. 2024), and the optimizers based on it."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.optim import rates
from modules.optim.spec import DARKROOM, OptimizerSettings, OptimizerSpec, Shape, by_name
from modules.optim.terms import advanced, fields
from modules.optim.terms.muon import hidden_entries
from modules.settings.field import Section, When, advanced_setting
from modules.settings.shared_types import Decay, PositiveFraction, UpTo100
from modules.system.patterns import fault_of_pattern
from modules.system.problem import Problem, quote

_HAS_ADAM = When("muon_with_aux_adam", (True,))
_with_adam = partial(advanced_setting, applies_when=_HAS_ADAM)
_of_adam = partial(advanced_setting, empty_means="the library's default")
WithAdam = Annotated[
    bool,
    advanced_setting(
        "Auxiliary Adam", "Uses Adam for weights that are not matrices and for layers that are not listed."
    ),
]
HiddenLayers = Annotated[
    str,
    _with_adam(
        "Layers for Muon",
        "Parts of the names of the layers that use Muon, separated by commas.",
        empty_means="the layers inside of blocks",
    ),
]
LayersArePatterns = Annotated[
    bool, _with_adam("Use regular expressions", "Reads the layer names as regular expressions.")
]
AdamRate = Annotated[UpTo100, _with_adam("Adam learning rate", "Learning rate of the Adam.")]
_text_rate = partial(_with_adam, empty_means="the Adam learning rate above")
TextRate1 = Annotated[
    UpTo100 | None,
    _text_rate("Adam learning rate, text encoder", "Learning rate of the Adam for the text encoder."),
]
TextRate2 = Annotated[
    UpTo100 | None,
    _text_rate("Adam learning rate, text encoder 2", "Learning rate of the Adam for the second text encoder."),
]


class AuxiliaryAdam(Section):
    """The auxiliary Adam of Muon; empty fields use the library's defaults."""

    beta1: Annotated[Decay | None, _of_adam("Adam: beta 1", "Decay of the Adam's running average of gradients.")] = None
    beta2: Annotated[
        Decay | None, _of_adam("Adam: beta 2", "Decay of the Adam's running average of squared gradients.")
    ] = None
    eps: Annotated[
        PositiveFraction | None, _of_adam("Adam: epsilon", "Keeps the Adam's division by small gradients finite.")
    ] = None
    weight_decay: Annotated[
        float | None,
        *Interval(ge=0, le=10),
        _of_adam("Adam: weight decay", "How strongly the Adam pulls weights towards zero at each step."),
    ] = None


class Muon(OptimizerSettings):
    """Muon (Jordan et al. 2024) for matrices, with Adam for all other weights."""

    name: Literal["muon"] = "muon"
    momentum: fields.Momentum = 0.95
    weight_decay: fields.WeightDecay = 0.0
    muon_with_aux_adam: WithAdam = True
    muon_hidden_layers: HiddenLayers = ""
    muon_adam_regex: LayersArePatterns = False
    muon_adam_lr: AdamRate = 3e-4
    muon_te1_adam_lr: TextRate1 = None
    muon_te2_adam_lr: TextRate2 = None
    muon_adam_config: AuxiliaryAdam = AuxiliaryAdam()
    fused_back_pass: fields.FusedBackPass = False


class AdvancedMuon(OptimizerSettings):
    """The settings that Muon and AdaMuon of adv-optm share."""

    beta1: fields.Beta1 = 0.9
    cautious_wd: advanced.CautiousDecay = False
    weight_decay: fields.WeightDecay = 0.0
    accelerated_ns: Annotated[
        bool, advanced_setting("Accelerated Newton-Schulz", "Orthogonalizes the update with optimized polynomials.")
    ] = False
    ns_steps: Annotated[
        int,
        *Interval(ge=1, le=100),
        advanced_setting(
            "Newton-Schulz steps", "Iterations that orthogonalize the update; 5 is usual.", unit="iterations"
        ),
    ] = 5
    low_rank_ortho: Annotated[
        bool,
        advanced_setting("Low-rank orthogonalization", "Orthogonalizes only a low-rank part of the update: faster."),
    ] = False
    ortho_rank: Annotated[
        int,
        *Interval(ge=1, le=65_536),
        advanced_setting(
            "Orthogonalization rank", "The rank of that part.", applies_when=When("low_rank_ortho", (True,))
        ),
    ] = 128
    rms_rescaling: Annotated[
        bool, advanced_setting("RMS rescaling", "Scales the update so that learning rates of AdamW can be used.")
    ] = True
    nnmf_factor: advanced.FactoredState = False
    fused_back_pass: fields.FusedBackPass = False
    muon_with_aux_adam: WithAdam = True
    muon_hidden_layers: HiddenLayers = ""
    muon_adam_regex: LayersArePatterns = False
    muon_adam_lr: AdamRate = 1e-6
    muon_te1_adam_lr: TextRate1 = None
    muon_te2_adam_lr: TextRate2 = None
    muon_adam_config: AuxiliaryAdam = AuxiliaryAdam()
    nesterov: fields.Nesterov = True
    normuon_variant: Annotated[bool, advanced_setting("NorMuon", "Normalizes the update row by row.")] = True
    orthogonal_gradient: advanced.OrthogonalGradient = False
    approx_mars: Annotated[
        bool, advanced_setting("MARS correction", "Corrects each gradient by its change since the previous step.")
    ] = False


def filter_problems(settings: Muon | AdvancedMuon) -> Iterator[Problem]:
    """Yield an error for each regular expression of the filter that is not valid."""
    if not (settings.muon_with_aux_adam and settings.muon_adam_regex):
        return
    for entry in hidden_entries(settings):
        if fault := fault_of_pattern(entry):
            message = f"{quote(entry)} is not a valid regular expression: {fault}."
            yield Problem("muon_hidden_layers", message, "error", "Correct it, or switch regular expressions off.")


def adam_arguments(
    settings: AuxiliaryAdam, *, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8
) -> dict[str, Any]:
    """Return the keyword arguments of the auxiliary Adam; empty fields have the library's defaults."""
    beta1 = betas[0] if settings.beta1 is None else settings.beta1
    beta2 = betas[1] if settings.beta2 is None else settings.beta2
    return {
        "adam_betas": (beta1, beta2),
        "adam_eps": eps if settings.eps is None else settings.eps,
        "adam_weight_decay": settings.weight_decay or 0.0,
    }


def _state_bytes(settings: Muon, shape: Shape) -> float:
    """Muon's average of gradients, or Adam's two for vectors; matrices with Adam, too, have two."""
    return (4.0 if len(shape) >= 2 else 8.0) * math.prod(shape)


MUON = OptimizerSpec(
    Muon,
    "Muon",
    "modules.optim.classes.muon:MuonWithAdam",
    library=DARKROOM,
    options_of="modules.optim.classes.muon:options_of",
    arguments=by_name(more=lambda s: adam_arguments(s.muon_adam_config, betas=(0.9, 0.95), eps=1e-10)),
    state_bytes=_state_bytes,
    rates=rates.LARGER,
    problems=filter_problems,
)


class MuonAdv(AdvancedMuon):
    """Muon, advanced: with further options for its state and its momentum."""

    name: Literal["muon_adv"] = "muon_adv"
    beta2_normuon: Annotated[
        Decay,
        advanced_setting(
            "NorMuon: beta 2",
            "Decay of the running average of the rows' squared norms.",
            applies_when=When("normuon_variant", (True,)),
        ),
    ] = 0.95


class AdaMuonAdv(AdvancedMuon):
    """AdaMuon, advanced: Muon with step sizes from the squared gradients, as in Adam."""

    name: Literal["adamuon_adv"] = "adamuon_adv"
    beta1: fields.Beta1 = 0.95
    beta2: fields.Beta2 = 0.95
    eps: fields.Epsilon = 1e-8
    nesterov: fields.Nesterov = False
    use_atan2: Annotated[
        bool,
        advanced_setting(
            "Use atan2",
            "Uses atan2 instead of a division by the squared gradients: bounded, without an epsilon.",
            applies_when=When("normuon_variant", (False,)),
        ),
    ] = False


def advanced_muon_state_bytes(settings: AdvancedMuon, shape: Shape, *, has_squares: bool) -> float:
    """Return the bytes of state of a matrix or kernel with Muon, and of a vector with the auxiliary Adam.

    Matrices with Adam, such as the matrices of the first and the last layer, have 8 bytes per weight.
    """
    size = math.prod(shape)
    if len(shape) < 2:
        return (4.0 if adam_arguments(settings.muon_adam_config)["adam_betas"][0] == 0 else 8.0) * size
    factored = settings.nnmf_factor
    total = advanced.average_bytes(shape, factored=factored)
    if settings.normuon_variant:
        total += 4.0 * (advanced.even_factors(size)[0] if factored else shape[0])
    elif has_squares:
        total += advanced.average_bytes(shape, factored=factored, signed=False)
    return total + (4.0 * size if settings.approx_mars else 0.0)


_ADVANCED_MUON: dict[str, Any] = {
    "options_of": "modules.optim.classes.muon:options_of",
    "arguments": by_name(more=lambda s: adam_arguments(s.muon_adam_config)),
    "problems": filter_problems,
    "lacks": ("compile", *advanced.SIMPLIFIED_ADEMAMIX),
    **advanced.ADV_OPTM,
}

MUON_ADV = OptimizerSpec(
    MuonAdv,
    "Muon (advanced)",
    f"{advanced.CLASSES}:MuonAdv",
    state_bytes=partial(advanced_muon_state_bytes, has_squares=False),
    **_ADVANCED_MUON,
)

ADAMUON_ADV = OptimizerSpec(
    AdaMuonAdv,
    "AdaMuon (advanced)",
    f"{advanced.CLASSES}:AdaMuonAdv",
    state_bytes=partial(advanced_muon_state_bytes, has_squares=True),
    **_ADVANCED_MUON,
)
