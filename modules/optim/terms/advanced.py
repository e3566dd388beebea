"""Fields of the advanced optimizers (adv_optm), and of Muon, which they include."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le, Lt

from modules.optim.terms.general import advanced
from modules.settings.field import When

CautiousDecay = Annotated[
    bool, advanced("Cautious weight decay", "Decays only the weights whose update already points towards zero.")
]
FactoredState = Annotated[
    bool,
    advanced("Factored state", "Stores the state as two vectors and a sign (NNMF): very little memory."),
]
Compile = Annotated[bool, advanced("Compile", "Uses torch.compile for the update: a slow start, then faster steps.")]
Atan2 = Annotated[
    bool, advanced("Use atan2", "Uses atan2 instead of a division: the update is bounded and needs no epsilon.")
]
OrthogonalGradient = Annotated[
    bool,
    advanced("Orthogonal gradient", "Removes the component of each gradient that only scales the weights (OrthoGrad)."),
]
UseAdEMAMix = Annotated[
    bool, advanced("AdEMAMix", "Adds a second, slow average of gradients (Pagliardini et al. 2024).")
]
SlowMean = Annotated[
    float,
    Ge(0),
    Lt(1),
    advanced("Beta 3 (EMA)", "Decay of the slow average of gradients.", applies_when=When("use_ademamix", (True,))),
]
SlowMeanWeight = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced(
        "Alpha", "The weight of the slow average relative to the fast one.", applies_when=When("use_ademamix", (True,))
    ),
]
SimplifiedAdEMAMix = Annotated[
    bool,
    advanced("Simplified AdEMAMix", "One accumulator and the current gradient instead of two averages: larger steps."),
]
GradientWeight = Annotated[
    float,
    Ge(0),
    Le(100_000),
    advanced(
        "Alpha grad",
        "The weight of the current gradient relative to the accumulator; smaller for large batches.",
        applies_when=When("simplified_ademamix", (True,)),
    ),
]
KourkoutasBeta = Annotated[
    bool, advanced("Kourkoutas beta", "Lowers beta 2 of each layer while its gradients vary strongly.")
]
