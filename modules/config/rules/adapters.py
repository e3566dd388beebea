"""The adapter and the layers it sits on."""

from __future__ import annotations

from collections.abc import Iterator

from modules.adapters.registry import ADAPTERS
from modules.config.schema import Config
from modules.system.problem import Problem


def custom_layers(config: Config) -> Iterator[Problem]:
    """Layers that are to be named: at least one is."""
    if config.training.trains != "adapter" or config.adapter.layers != "custom":
        return
    if not config.adapter.custom_layers.strip(" ,"):
        yield Problem(
            "adapter.custom_layers",
            "The layers are to be the named ones, but none is named.",
            advice="Name parts of layer names, as in: attn1, attn2.",
        )


def file_form(config: Config) -> Iterator[Problem]:
    """Not every adapter can be written in every form."""
    spec, form = ADAPTERS[config.adapter.name], config.output.format
    if config.training.trains == "adapter" and spec.is_supported and form not in spec.forms:
        yield Problem(
            "output.format",
            f"A {spec.label} cannot be written in the {form} form.",
            advice=f"Choose the {spec.forms[0]} form.",
        )
