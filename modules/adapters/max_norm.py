"""The setting of the largest norm of an adapter's layers, for adapters that support it. Torch-free."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt, Le

from modules.adapters.settings import AN_ADAPTER, AdapterSettings
from modules.settings.field import Setting

MaxNorm = Annotated[
    float | None,
    Gt(0),
    Le(1000),
    Setting(
        "Max norm",
        "After each step, layers whose change of the model (B A, times alpha by rank) has a larger norm are scaled "
        "down to it: kohya's scale_weight_norms, usually 1. It prevents overfitting, and several LoRAs combine better.",
        group="Regularization",
        level="advanced",
        applies_when=AN_ADAPTER,
        empty_means="no limit",
    ),
]


def max_norm_of(settings: AdapterSettings) -> float | None:
    """Return the largest norm of a layer's change; None without a limit, or where the adapter does not support one."""
    limit = getattr(settings, "max_norm", None)
    return None if limit is None else float(limit)
