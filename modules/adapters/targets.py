"""Which layers of a part get an adapter."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from modules.families.spec import Role
from modules.settings.layer_filter import LayerFilter, select_layers


def target_layers(module: nn.Module, role: Role, *, layers: LayerFilter, reaches: Callable[[str], bool]) -> list[str]:
    """Return the dotted names of the layers that get an adapter, in the module's own order.

    Linear and convolution layers that the filter takes; a text encoder has no filter, but its
    numbered layers alone count: a projection behind them has no name in LoRA files that every program reads. What no
    gradient can reach (layers left out by clip skip) is never taken. Raises DarkroomError where an entry of the
    filter takes no layer.
    """
    candidates = [n for n, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d) and reaches(n)]
    if role == "text_encoder":
        return [name for name in candidates if "layers" in name.split(".")]
    return select_layers(layers, candidates, page="LoRA / Adapter")
