"""Fields of Muon (Jordan et al. 2024) and of the optimizers based on it."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from modules.optim.terms.general import advanced
from modules.settings.field import Section, When

_HAS_ADAM = When("muon_with_aux_adam", (True,))
_AS_IN_THE_LIBRARY = "the library's default"
WithAdam = Annotated[
    bool, advanced("Auxiliary Adam", "Uses Adam for weights that are not matrices and for layers that are not listed.")
]
HiddenLayers = Annotated[
    str,
    advanced(
        "Layers for Muon",
        "Parts of the names of the layers that use Muon, separated by commas.",
        applies_when=_HAS_ADAM,
        empty_means="the hidden layers of each model",
    ),
]
LayersArePatterns = Annotated[
    bool,
    advanced("Use regular expressions", "Reads the layer names as regular expressions.", applies_when=_HAS_ADAM),
]
AdamRate = Annotated[
    float, Ge(0), Le(100), advanced("Adam learning rate", "Learning rate of the Adam.", applies_when=_HAS_ADAM)
]
TextRate1 = Annotated[
    float | None,
    Ge(0),
    Le(100),
    advanced(
        "Adam learning rate, text encoder",
        "Learning rate of the Adam for the text encoder.",
        applies_when=_HAS_ADAM,
        empty_means="the Adam learning rate above",
    ),
]
TextRate2 = Annotated[
    float | None,
    Ge(0),
    Le(100),
    advanced(
        "Adam learning rate, text encoder 2",
        "Learning rate of the Adam for the second text encoder.",
        applies_when=_HAS_ADAM,
        empty_means="the Adam learning rate above",
    ),
]
FasterIteration = Annotated[
    bool, advanced("Accelerated Newton-Schulz", "Orthogonalizes the update with optimized polynomials.")
]
IterationSteps = Annotated[
    int,
    Ge(1),
    Le(100),
    advanced("Newton-Schulz steps", "Iterations that orthogonalize the update; 5 is usual.", unit="iterations"),
]
LowRank = Annotated[
    bool, advanced("Low-rank orthogonalization", "Orthogonalizes only a low-rank part of the update: faster.")
]
LowRankSize = Annotated[
    int,
    Ge(1),
    Le(65_536),
    advanced("Orthogonalization rank", "The rank of that part.", applies_when=When("low_rank_ortho", (True,))),
]
AdamSized = Annotated[bool, advanced("RMS rescaling", "Scales the update so that learning rates of AdamW can be used.")]
NormuonVariant = Annotated[bool, advanced("NorMuon", "Normalizes the update row by row.")]
MarsCorrection = Annotated[
    bool, advanced("MARS correction", "Corrects each gradient by its change since the previous step.")
]


class AuxiliaryAdam(Section):
    """The auxiliary Adam of Muon; empty fields use the library's defaults."""

    beta1: Annotated[
        float | None,
        Ge(0),
        Lt(1),
        advanced(
            "Adam: beta 1",
            "Decay of the Adam's running average of gradients.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
    beta2: Annotated[
        float | None,
        Ge(0),
        Lt(1),
        advanced(
            "Adam: beta 2",
            "Decay of the Adam's running average of squared gradients.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
    eps: Annotated[
        float | None,
        Gt(0),
        Le(1),
        advanced(
            "Adam: epsilon",
            "Keeps the Adam's division by small gradients finite.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
    weight_decay: Annotated[
        float | None,
        Ge(0),
        Le(10),
        advanced(
            "Adam: weight decay",
            "How strongly the Adam pulls weights towards zero at each step.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
