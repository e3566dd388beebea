"""The layers that the adapter is attached to."""

from __future__ import annotations

from collections.abc import Iterator

from modules.adapters.max_norm import max_norm_of
from modules.adapters.registry import ADAPTERS
from modules.config.schema import Config
from modules.optim.registry import optimizer_spec
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


def max_norm(config: Config) -> Iterator[Problem]:
    """Yield an error if the norm of the layers cannot be limited: the optimizer derives the weights, or rounds them."""
    if config.training.trains != "adapter" or max_norm_of(config.adapter) is None:
        return
    spec = optimizer_spec(config.training.optimizer)
    if spec.has_evaluation_mode:
        yield Problem(
            "adapter.max_norm",
            f"{spec.label} derives the weights from averages of its own, which a limit of the norm would not reach.",
            advice="Leave the max norm empty, or choose another optimizer.",
        )
    if config.adapter.dtype != "float32" and config.training.low_precision_updates == "stochastic":
        yield Problem(
            "adapter.max_norm",
            f"The weights of the adapter are {config.adapter.dtype} and are rounded stochastically: scaling them down "
            "by a little would be lost in rounding.",
            advice="Set the low-precision weight updates to master weights, the weight dtype to float32, or leave the "
            "max norm empty.",
        )
