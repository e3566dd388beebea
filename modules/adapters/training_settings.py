"""The settings of the rank, the strength and the training that adapters with a rank share."""

from typing import Annotated

from annotated_types import Interval

from modules.adapters.settings import AdapterSection
from modules.settings.field import Setting, When, advanced_setting
from modules.settings.shared_types import Dropout


class RankedSettings(AdapterSection):
    """The settings that adapters with a rank share."""

    rank: Annotated[
        int,
        *Interval(ge=1, le=1024),
        Setting("Rank", "How much the LoRA can hold; 8 to 32 for most subjects. The file grows with it."),
    ] = 16
    alpha: Annotated[
        float,
        *Interval(gt=0, le=4096),
        Setting("Alpha", "The strength of the LoRA is alpha divided by rank; equal values give strength 1."),
    ] = 16.0
    conv_rank: Annotated[
        int | None,
        *Interval(ge=1, le=1024),
        advanced_setting(
            "Convolution rank",
            "The rank of convolutions with a kernel larger than 1x1 (LoCon's own rank).",
            empty_means="the rank of the other layers",
        ),
    ] = None
    conv_alpha: Annotated[
        float | None,
        *Interval(gt=0, le=4096),
        advanced_setting(
            "Convolution alpha",
            "The alpha of convolutions with a kernel larger than 1x1.",
            empty_means="the strength of the other layers",
        ),
    ] = None
    rank_stabilized: Annotated[
        bool,
        advanced_setting(
            "Rank-stabilized (rsLoRA)",
            "Divides alpha by the square root of the rank instead of the rank (Kalajdzievski 2023), so that high ranks "
            "learn as fast as low ones. Files hold the alpha that gives the same strength in every program.",
        ),
    ] = False
    layer_ranks: Annotated[
        str,
        advanced_setting(
            "Ranks by layer",
            "Other ranks for some layers, one line each: a part of the layers' names = rank, or = rank:alpha. For "
            "example down_blocks = 8 for the first half of the UNet, or attn2 = 32:16 for its cross-attention. A name "
            "after re: is a regular expression. The first line that matches a layer counts, before the rank of "
            "convolutions; with a rank of 0 the layer gets no adapter. Without an alpha it has the strength of the "
            "other layers.",
            group="Layers",
            empty_means="the rank above for all layers",
            multiline=True,
        ),
    ] = ""
    rank_dropout: Annotated[
        Dropout,
        advanced_setting(
            "Rank dropout",
            "The probability of dropping each rank of a layer's adapter, drawn separately for each image. Adapters "
            "whose ranks no image passes through drop outputs of their product instead.",
            group="Regularization",
        ),
    ] = 0.0
    decompose: Annotated[
        bool, advanced_setting("DoRA", "Trains magnitude and direction of the weights separately (Liu et al. 2024).")
    ] = False
    decompose_norm_eps: Annotated[
        bool,
        advanced_setting(
            "DoRA norm epsilon",
            "Adds a tiny number to the norm to avoid division by zero.",
            applies_when=When("decompose", (True,)),
        ),
    ] = True
    decompose_output_axis: Annotated[
        bool,
        advanced_setting(
            "DoRA on output axis",
            "One magnitude for each output of a layer, as in the paper, instead of each input. diffusers loads only "
            "these; in ComfyUI, Forge and A1111 only magnitudes of inputs act as they were trained.",
            applies_when=When("decompose", (True,)),
        ),
    ] = False


UNIFORM_RANKS = {"conv_rank": None, "conv_alpha": None, "layer_ranks": "", "rank_stabilized": False}
"""The settings with which every layer has the same rank and alpha, and a strength of alpha by rank."""


def max_norm_of(settings: AdapterSection) -> float | None:
    """Return the largest norm of a layer's change; None without a limit, or if the adapter does not support one."""
    limit = getattr(settings, "max_norm", None)
    return None if limit is None else float(limit)
