"""The optimizers, one line each: the config's name, and the function that builds it from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from modules.config.sections.optimizer import Adafactor, AdamW, OptimizerSettings

Groups = list[dict[str, Any]]


def _adamw(groups: Groups, settings: AdamW) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        groups, betas=(settings.beta1, settings.beta2), eps=settings.eps, weight_decay=settings.weight_decay
    )


def _adafactor(groups: Groups, settings: Adafactor) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(
        groups, beta2_decay=settings.beta2_decay, d=settings.clip_threshold, weight_decay=settings.weight_decay
    )


OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "adafactor": _adafactor,
}


def build_optimizer(groups: Groups, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Return the optimizer that settings describe over parameter groups (dicts with "params" and "lr")."""
    return OPTIMIZERS[settings.name](groups, settings)
