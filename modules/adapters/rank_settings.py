"""The settings of the rank and the strength of an adapter, which `ranks` reads. Torch-free."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le

from modules.adapters.settings import AN_ADAPTER
from modules.settings.field import Setting

Rank = Annotated[
    int,
    Ge(1),
    Le(1024),
    Setting(
        "Rank",
        "How much the LoRA can hold; 8 to 32 for most subjects. The file grows with it.",
        group="Adapter",
        applies_when=AN_ADAPTER,
    ),
]
Alpha = Annotated[
    float,
    Gt(0),
    Le(4096),
    Setting(
        "Alpha",
        "The strength of the LoRA is alpha divided by rank; equal values give strength 1.",
        group="Adapter",
        applies_when=AN_ADAPTER,
    ),
]
ConvRank = Annotated[
    int | None,
    Ge(1),
    Le(1024),
    Setting(
        "Convolution rank",
        "The rank of convolutions with a kernel larger than 1x1 (LoCon's own rank).",
        group="Adapter",
        level="advanced",
        applies_when=AN_ADAPTER,
        empty_means="the rank of the other layers",
    ),
]
ConvAlpha = Annotated[
    float | None,
    Gt(0),
    Le(4096),
    Setting(
        "Convolution alpha",
        "The alpha of convolutions with a kernel larger than 1x1.",
        group="Adapter",
        level="advanced",
        applies_when=AN_ADAPTER,
        empty_means="the strength of the other layers",
    ),
]
LayerRanksText = Annotated[
    str,
    Setting(
        "Ranks by layer",
        "Ranks of their own for layers, one per line: a part of the layers' names = rank, or = rank:alpha. For example "
        "down_blocks = 8 for the first half of the UNet, or attn2 = 32:16 for its cross-attention. After re: a name is "
        "a regular expression. The first line that takes a layer counts, before the rank of convolutions; with a rank "
        "of 0 the layer gets no adapter. Without an alpha the strength is that of the other layers.",
        group="Layers",
        level="advanced",
        applies_when=AN_ADAPTER,
        empty_means="the rank above for all layers",
        multiline=True,
    ),
]
RankStabilized = Annotated[
    bool,
    Setting(
        "Rank-stabilized (rsLoRA)",
        "Divides alpha by the square root of the rank instead of the rank (Kalajdzievski 2023), so that high ranks "
        "learn as fast as low ones. Files hold the alpha that gives the same strength in every program.",
        group="Adapter",
        level="advanced",
        applies_when=AN_ADAPTER,
    ),
]
