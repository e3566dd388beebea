"""The fields of Muon (Jordan et al. 2024) and of what follows it."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from modules.optim.terms.general import advanced
from modules.settings.field import Section, When

_HAS_ADAM = When("muon_with_aux_adam", (True,))
_AS_IN_THE_LIBRARY = "the library's own value"
WithAdam = Annotated[
    bool, advanced("An Adam for the rest", "Weights that are no matrices, and layers that are not named, use an Adam.")
]
HiddenLayers = Annotated[
    str,
    advanced(
        "Layers for Muon",
        "Parts of layer names, separated by commas: these use Muon.",
        applies_when=_HAS_ADAM,
        empty_means="the hidden layers of each model",
    ),
]
LayersArePatterns = Annotated[
    bool,
    advanced("Names are patterns", "Reads the layer names as regular expressions.", applies_when=_HAS_ADAM),
]
AdamRate = Annotated[
    float, Ge(0), Le(100), advanced("Adam's learning rate", "How far the Adam's steps go.", applies_when=_HAS_ADAM)
]
TextRate1 = Annotated[
    float | None,
    Ge(0),
    Le(100),
    advanced(
        "Adam's rate, text encoder",
        "How far the Adam's steps go in the text encoder.",
        applies_when=_HAS_ADAM,
        empty_means="the Adam's rate above",
    ),
]
TextRate2 = Annotated[
    float | None,
    Ge(0),
    Le(100),
    advanced(
        "Adam's rate, text encoder 2",
        "How far the Adam's steps go in the second text encoder.",
        applies_when=_HAS_ADAM,
        empty_means="the Adam's rate above",
    ),
]
FasterIteration = Annotated[
    bool, advanced("Faster iteration", "Makes the step orthogonal with better chosen polynomials.")
]
IterationSteps = Annotated[
    int,
    Ge(1),
    Le(100),
    advanced("Iterations", "How often the step is brought closer to orthogonal; 5 is usual.", unit="iterations"),
]
LowRank = Annotated[
    bool, advanced("Orthogonal at low rank", "Makes only a low-rank part of the step orthogonal: faster.")
]
LowRankSize = Annotated[
    int,
    Ge(1),
    Le(65_536),
    advanced("Its rank", "The rank of that part.", applies_when=When("low_rank_ortho", (True,))),
]
AdamSized = Annotated[
    bool, advanced("Steps of Adam's size", "Scales the step so that learning rates of AdamW can be used.")
]
NormuonVariant = Annotated[bool, advanced("NorMuon", "Evens out the sizes of the step row by row.")]
MarsCorrection = Annotated[
    bool, advanced("MARS correction", "Corrects each gradient by its change since the last step.")
]


class AuxiliaryAdam(Section):
    """The Adam beside Muon; what is left empty is as its library has it."""

    beta1: Annotated[
        float | None,
        Ge(0),
        Lt(1),
        advanced(
            "Adam: beta 1",
            "How long the Adam's mean of gradients remembers.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
    beta2: Annotated[
        float | None,
        Ge(0),
        Lt(1),
        advanced(
            "Adam: beta 2",
            "How long the Adam's mean of squared gradients remembers.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
    eps: Annotated[
        float | None,
        Gt(0),
        Le(1),
        advanced(
            "Adam: epsilon",
            "Keeps the Adam's division finite.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
    weight_decay: Annotated[
        float | None,
        Ge(0),
        Le(10),
        advanced(
            "Adam: weight decay",
            "How strongly the Adam pulls its weights towards zero.",
            empty_means=_AS_IN_THE_LIBRARY,
        ),
    ] = None
