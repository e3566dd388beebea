"""Fields of Muon (Jordan et al. 2024) and of the optimizers based on it, and what they mean for a weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Protocol

from annotated_types import Ge, Interval, Le

from modules.optim.spec import OptimizerSettings, Shape
from modules.optim.terms.advanced import CautiousDecay, FactoredState, OrthogonalGradient, average_bytes, even_factors
from modules.optim.terms.general import Beta1, FusedBackPass, Nesterov, WeightDecay
from modules.settings.field import Section, When, advanced_setting
from modules.system.patterns import compiled_pattern, fault_of_pattern
from modules.system.problem import Problem, shown

# Parts of the names of hidden layers in every model so far: blocks of a UNet, numbered layers of a text encoder.
HIDDEN_LAYERS = ("block", "layers.")

_HAS_ADAM = When("muon_with_aux_adam", (True,))
_AS_IN_THE_LIBRARY = "the library's default"
WithAdam = Annotated[
    bool,
    advanced_setting(
        "Auxiliary Adam", "Uses Adam for weights that are not matrices and for layers that are not listed."
    ),
]
HiddenLayers = Annotated[
    str,
    advanced_setting(
        "Layers for Muon",
        "Parts of the names of the layers that use Muon, separated by commas.",
        applies_when=_HAS_ADAM,
        empty_means="the layers inside of blocks",
    ),
]
LayersArePatterns = Annotated[
    bool,
    advanced_setting(
        "Use regular expressions", "Reads the layer names as regular expressions.", applies_when=_HAS_ADAM
    ),
]
AdamRate = Annotated[
    float, Ge(0), Le(100), advanced_setting("Adam learning rate", "Learning rate of the Adam.", applies_when=_HAS_ADAM)
]
TextRate1 = Annotated[
    float | None,
    *Interval(ge=0, le=100),
    advanced_setting(
        "Adam learning rate, text encoder",
        "Learning rate of the Adam for the text encoder.",
        applies_when=_HAS_ADAM,
        empty_means="the Adam learning rate above",
    ),
]
TextRate2 = Annotated[
    float | None,
    *Interval(ge=0, le=100),
    advanced_setting(
        "Adam learning rate, text encoder 2",
        "Learning rate of the Adam for the second text encoder.",
        applies_when=_HAS_ADAM,
        empty_means="the Adam learning rate above",
    ),
]


class AuxiliaryAdam(Section):
    """The auxiliary Adam of Muon; empty fields use the library's defaults."""

    beta1: Annotated[
        float | None,
        *Interval(ge=0, lt=1),
        advanced_setting(
            "Adam: beta 1",
            "Decay of the Adam's running average of gradients.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
    beta2: Annotated[
        float | None,
        *Interval(ge=0, lt=1),
        advanced_setting(
            "Adam: beta 2",
            "Decay of the Adam's running average of squared gradients.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
    eps: Annotated[
        float | None,
        *Interval(gt=0, le=1),
        advanced_setting(
            "Adam: epsilon",
            "Keeps the Adam's division by small gradients finite.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
    weight_decay: Annotated[
        float | None,
        *Interval(ge=0, le=10),
        advanced_setting(
            "Adam: weight decay",
            "How strongly the Adam pulls weights towards zero at each step.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None


class MuonFields(Protocol):
    """The settings that divide weights between Muon and its auxiliary Adam."""

    @property
    def muon_with_aux_adam(self) -> bool: ...
    @property
    def muon_hidden_layers(self) -> str: ...
    @property
    def muon_adam_regex(self) -> bool: ...
    @property
    def muon_adam_lr(self) -> float: ...
    @property
    def muon_te1_adam_lr(self) -> float | None: ...
    @property
    def muon_te2_adam_lr(self) -> float | None: ...
    @property
    def muon_adam_config(self) -> AuxiliaryAdam: ...


def hidden_entries(settings: MuonFields) -> tuple[str, ...]:
    """Return the entries of the filter for Muon's layers: parts of names, or regular expressions."""
    given = tuple(entry for part in settings.muon_hidden_layers.split(",") if (entry := part.strip()))
    return given or HIDDEN_LAYERS


def is_hidden(name: str, settings: MuonFields) -> bool:
    """Return whether the filter matches the full name of a weight."""
    entries = hidden_entries(settings)
    if settings.muon_adam_regex and settings.muon_hidden_layers.strip():
        return any(compiled_pattern(entry).is_in(name) for entry in entries)
    return any(entry in name for entry in entries)


def adam_rate(part: str, settings: MuonFields) -> float:
    """Return the learning rate of the auxiliary Adam for a part of the model."""
    rate = {"text_encoder": settings.muon_te1_adam_lr, "text_encoder_2": settings.muon_te2_adam_lr}.get(part)
    return settings.muon_adam_lr if rate is None else rate


def filter_problems(settings: MuonFields) -> Iterator[Problem]:
    """Yield an error for each regular expression of the filter that is not valid."""
    if not (settings.muon_with_aux_adam and settings.muon_adam_regex):
        return
    for entry in hidden_entries(settings):
        if fault := fault_of_pattern(entry):
            message = f"{shown(entry)} is not a valid regular expression: {fault}."
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


class AdvancedMuon(OptimizerSettings):
    """The settings that Muon and AdaMuon of adv-optm share."""

    beta1: Beta1 = 0.9
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
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
    nnmf_factor: FactoredState = False
    fused_back_pass: FusedBackPass = False
    muon_with_aux_adam: WithAdam = True
    muon_hidden_layers: HiddenLayers = ""
    muon_adam_regex: LayersArePatterns = False
    muon_adam_lr: AdamRate = 1e-6
    muon_te1_adam_lr: TextRate1 = None
    muon_te2_adam_lr: TextRate2 = None
    muon_adam_config: AuxiliaryAdam = AuxiliaryAdam()
    nesterov: Nesterov = True
    normuon_variant: Annotated[bool, advanced_setting("NorMuon", "Normalizes the update row by row.")] = True
    orthogonal_gradient: OrthogonalGradient = False
    approx_mars: Annotated[
        bool, advanced_setting("MARS correction", "Corrects each gradient by its change since the previous step.")
    ] = False


def advanced_muon_state_bytes(settings: AdvancedMuon, shape: Shape, *, has_squares: bool) -> float:
    """Return the bytes of state of a matrix or kernel with Muon, and of a vector with the auxiliary Adam.

    Matrices with Adam, such as the matrices of the first and the last layer, have 8 bytes per weight.
    """
    size = math.prod(shape)
    if len(shape) < 2:
        return (4.0 if adam_arguments(settings.muon_adam_config)["adam_betas"][0] == 0 else 8.0) * size
    factored = settings.nnmf_factor
    total = average_bytes(shape, factored=factored)
    if settings.normuon_variant:
        total += 4.0 * (even_factors(size)[0] if factored else shape[0])
    elif has_squares:
        total += average_bytes(shape, factored=factored, signed=False)
    return total + (4.0 * size if settings.approx_mars else 0.0)
