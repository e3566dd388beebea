"""The layers that the adapter is attached to, their ranks, and the files it can be written to."""

from __future__ import annotations

from collections.abc import Iterator

from modules.adapters.ranks import parse_ranks
from modules.adapters.registry import ADAPTERS
from modules.adapters.settings import decomposed_axis
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.problem import Problem


def custom_layers(config: Config) -> Iterator[Problem]:
    """Yield an error if the layer filter is custom and has no layer names."""
    if config.training.trains != "adapter" or config.adapter.layers != "custom":
        return
    if not config.adapter.custom_layers.strip(" ,"):
        yield Problem(
            "adapter.custom_layers",
            "The layer filter is set to named layers, but no layer names are given.",
            advice="Enter parts of layer names, for example: attn1, attn2.",
        )


def ranks_by_layer(config: Config) -> Iterator[Problem]:
    """Yield an error for a line of the ranks by layer that is none."""
    text = getattr(config.adapter, "layer_ranks", "")
    if config.training.trains != "adapter" or not text:
        return
    try:
        parse_ranks(text)
    except DarkroomError as error:
        yield Problem("adapter.layer_ranks", error.message, advice=error.advice)


def file_format(config: Config) -> Iterator[Problem]:
    """Yield an error if the adapter cannot be written in the output format."""
    spec, form = ADAPTERS[config.adapter.name], config.output.format
    if config.training.trains == "adapter" and spec.is_supported and form not in spec.forms:
        yield Problem(
            "output.format",
            f"{spec.label} cannot be saved in the {form} format.",
            advice=f"Choose the {spec.forms[0]} format.",
        )
    elif config.training.trains == "adapter" and form == "diffusers" and decomposed_axis(config.adapter) == "inputs":
        yield Problem(
            "output.format",
            "The diffusers format cannot hold DoRA magnitudes of a layer's inputs.",
            advice="Choose the kohya format, or DoRA on the output axis.",
        )
