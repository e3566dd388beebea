"""The layers that the adapter is attached to."""

from __future__ import annotations

from collections.abc import Iterator

from modules.adapters.registry import ADAPTERS
from modules.config.schema import Config
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


def file_format(config: Config) -> Iterator[Problem]:
    """Yield an error if the adapter cannot be written in the output format."""
    spec, form = ADAPTERS[config.adapter.name], config.output.format
    if config.training.trains == "adapter" and spec.is_supported and form not in spec.forms:
        yield Problem(
            "output.format",
            f"{spec.label} cannot be saved in the {form} format.",
            advice=f"Choose the {spec.forms[0]} format.",
        )
