"""The terms of the advanced optimizers (adv_optm), and of Muon, which they include."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le, Lt

from modules.optim.terms.general import advanced
from modules.settings.field import When

CautiousDecay = Annotated[
    bool, advanced("Cautious decay", "Pulls only those weights towards zero that are on their way there.")
]
FactoredState = Annotated[
    bool,
    advanced("Factored state", "Keeps the state as a product of two vectors and a sign: very little memory."),
]
Compile = Annotated[bool, advanced("Compile", "Compiles the update for the GPU: a slow start, then faster steps.")]
Atan2 = Annotated[
    bool, advanced("Arctangent", "Takes an arctangent in place of a division: bounded steps, and no epsilon.")
]
OrthogonalGradient = Annotated[
    bool, advanced("Orthogonal gradient", "Takes out of each gradient what only scales the weights.")
]
UseAdEMAMix = Annotated[bool, advanced("AdEMAMix", "Keeps a second, slow mean of gradients (Pagliardini et al. 2024).")]
SlowMean = Annotated[
    float,
    Ge(0),
    Lt(1),
    advanced("Slow beta", "How long the slow mean remembers.", applies_when=When("use_ademamix", (True,))),
]
SlowMeanWeight = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced("Alpha", "How much the slow mean counts beside the fast one.", applies_when=When("use_ademamix", (True,))),
]
SimplifiedAdEMAMix = Annotated[
    bool,
    advanced("Simplified AdEMAMix", "One accumulator and the newest gradient in place of two means: larger steps."),
]
GradientWeight = Annotated[
    float,
    Ge(0),
    Le(100_000),
    advanced(
        "Weight of the gradient",
        "How much the newest gradient counts beside the accumulator; smaller for large batches.",
        applies_when=When("simplified_ademamix", (True,)),
    ),
]
KourkoutasBeta = Annotated[
    bool, advanced("Kourkoutas beta", "Beta 2 falls by itself, layer by layer, while the gradients are restless.")
]
