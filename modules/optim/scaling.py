"""Factors on the loss and the learning rate that follow the size of the batch, as OneTrainer has them."""

from __future__ import annotations

import math
from typing import Literal

Scaler = Literal["none", "batch", "global_batch", "accumulation", "both", "global_both"]
SCALER_LABELS = {
    "none": "Off",
    "batch": "Batch size",
    "global_batch": "Global batch size",
    "accumulation": "Accumulation",
    "both": "Batch size and accumulation",
    "global_both": "Global batch size and accumulation",
}


def loss_factor(scaler: Scaler, *, batch_size: int, accumulation_steps: int) -> int:
    """Return the factor on the loss. A run is one process, so the global batch is the batch of the process."""
    match scaler:
        case "none":
            return 1
        case "batch" | "global_batch":
            return batch_size
        case "accumulation":
            return accumulation_steps
        case "both" | "global_both":
            return batch_size * accumulation_steps


def rate_factor(scaler: Scaler, *, batch_size: int, accumulation_steps: int) -> float:
    """Return the factor on the learning rates: the square root of the factor on a loss.

    The noise of a gradient falls with the root of the batch, which is the rule for adaptive optimizers (Krizhevsky
    2014, section 5; Malladi et al. 2022).
    """
    return math.sqrt(loss_factor(scaler, batch_size=batch_size, accumulation_steps=accumulation_steps))
