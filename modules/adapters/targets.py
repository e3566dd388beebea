"""Which layers of a part get an adapter."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from modules.adapters.settings import layer_entries
from modules.families.spec import Role
from modules.system.errors import DarkroomError


def target_layers(
    module: nn.Module, role: Role, *, layers: str, custom_layers: str, reaches: Callable[[str], bool]
) -> list[str]:
    """Return the dotted names of the layers that get an adapter, in the module's own order.

    Linear and convolution layers whose name contains one of the filter's entries; a text encoder has no filter, but its
    numbered layers alone count: a projection behind them has no name in LoRA files that every program reads. What no
    gradient can reach (layers left out by clip skip) is never taken. Raises DarkroomError where an entry of the
    filter matches no layer, for it is then a slip of the pen.
    """
    candidates = [n for n, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d) and reaches(n)]
    if role == "text_encoder":
        return [name for name in candidates if "layers" in name.split(".")]
    entries = layer_entries(layers, custom_layers)
    for entry in entries:
        if not any(entry in name for name in candidates):
            raise DarkroomError(
                f"No layer's name contains {entry!r}, which is one of the adapter's layer names.",
                advice="Correct it on the LoRA / Adapter page, as in attn1, attn2, ff.",
            )
    return [name for name in candidates if any(entry in name for entry in entries)]
