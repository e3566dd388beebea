"""The settings of how an adapter is trained: dropouts, rates, DoRA and the dtype. Torch-free."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from modules.adapters.settings import AN_ADAPTER
from modules.settings.field import Setting, When

Dropout = Annotated[
    float,
    Ge(0),
    Lt(1),
    Setting(
        "Dropout",
        "The probability of dropping each of the adapter's inputs.",
        group="Regularization",
        applies_when=AN_ADAPTER,
        level="advanced",
    ),
]
RankDropout = Annotated[
    float,
    Ge(0),
    Lt(1),
    Setting(
        "Rank dropout",
        "The probability of dropping each rank of a layer's adapter, for each image of its own. Adapters whose "
        "ranks no image passes through drop outputs of their product instead.",
        group="Regularization",
        applies_when=AN_ADAPTER,
        level="advanced",
    ),
]
ModuleDropout = Annotated[
    float,
    Ge(0),
    Lt(1),
    Setting(
        "Module dropout",
        "The probability of leaving out the whole adapter of a layer in a step.",
        group="Regularization",
        applies_when=AN_ADAPTER,
        level="advanced",
    ),
]
LoraPlusRatio = Annotated[
    float,
    Gt(0),
    Le(1024),
    Setting(
        "LoRA+ ratio",
        "The learning rate of the matrix that begins as zero (B, or up), divided by that of the others (Hayou et al. "
        "2024, who suggest 16). 1 trains all with the same rate.",
        group="Adapter",
        applies_when=AN_ADAPTER,
        level="advanced",
    ),
]
Decompose = Annotated[
    bool,
    Setting(
        "DoRA",
        "Trains magnitude and direction of the weights separately (Liu et al. 2024).",
        group="Adapter",
        level="advanced",
        applies_when=AN_ADAPTER,
    ),
]
DecomposeEps = Annotated[
    bool,
    Setting(
        "DoRA norm epsilon",
        "Adds a tiny number to the norm to avoid division by zero.",
        group="Adapter",
        level="advanced",
        applies_when=When("decompose", (True,)),
    ),
]
DecomposeOutputAxis = Annotated[
    bool,
    Setting(
        "DoRA on output axis",
        "One magnitude for each output of a layer, as in the paper, instead of each input. diffusers loads only these; "
        "ComfyUI, Forge and A1111 apply only those of inputs as they were trained.",
        group="Adapter",
        level="advanced",
        applies_when=When("decompose", (True,)),
    ),
]
WeightType = Annotated[
    Literal["float32", "bfloat16", "float16"],
    Setting(
        "Weight dtype",
        "The dtype of the adapter's weights while training.",
        group="Adapter",
        applies_when=AN_ADAPTER,
        level="advanced",
        choice_labels={"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
    ),
]
