"""The learning rates that adaptive optimizers arrive at, as opposed to the ones that are set."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from modules.optim.spec import EffectiveRate


def effective_rates(
    groups: Iterable[Mapping[str, Any]], effective_rate: EffectiveRate | None
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return the effective learning rates of an optimizer's parameter groups by unit: known numbers, and tensors.

    The tensors, of shape (), are on an accelerator: reading one waits for it, so the step reads them together with its
    loss. Of several groups of a unit, the first that has a rate counts. Groups without a rate are left out.
    """
    numbers: dict[str, float] = {}
    tensors: dict[str, torch.Tensor] = {}
    if effective_rate is None:
        return {}, {}
    for group in groups:
        unit = str(group["unit"])
        if unit in numbers or unit in tensors:
            continue
        value = effective_rate(group)
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            tensors[unit] = value.detach().float().reshape(())
        elif value is not None:
            numbers[unit] = float(value)
    return {unit: rate for unit, rate in numbers.items() if math.isfinite(rate)}, tensors
