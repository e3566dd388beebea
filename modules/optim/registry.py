"""The optimizers, one line each: the config's name, and the function that builds it from its settings."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers.optimization import Adafactor as FactoredAdam

from modules.config.sections.optimizer import OptimizerSettings
from modules.config.sections.optimizers.adafactor import Adafactor
from modules.config.sections.optimizers.adam import Adam, AdamW
from modules.config.sections.optimizers.eight_bit import AdamW8bit
from modules.config.sections.optimizers.sgd import Sgd
from modules.config.sections.optimizers.squares import Adagrad, RmsProp
from modules.system.errors import DarkroomError

Groups = list[dict[str, Any]]


def _adamw(groups: Groups, settings: AdamW) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, **_adam_arguments(settings))


def _adam(groups: Groups, settings: Adam) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, **_adam_arguments(settings))


def _adam_arguments(settings: Adam | AdamW) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "amsgrad": settings.amsgrad,
        "maximize": settings.maximize,
        "fused": settings.fused,
        "foreach": settings.foreach and not settings.fused,
    }


def _adafactor(groups: Groups, settings: Adafactor) -> torch.optim.Optimizer:
    # torch has an Adafactor as well; it always scales with the weights and keeps no mean of the updates.
    optimizer: torch.optim.Optimizer = FactoredAdam(
        groups,
        eps=(settings.eps, settings.eps2),
        clip_threshold=settings.clip_threshold,
        decay_rate=settings.beta2_decay,
        beta1=settings.beta1,
        weight_decay=settings.weight_decay,
        scale_parameter=settings.scale_parameter,
        relative_step=False,
    )
    return optimizer


def _adamw_8bit(groups: Groups, settings: AdamW8bit) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = _bitsandbytes().optim.AdamW8bit(
        groups,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        min_8bit_size=settings.min_8bit_size,
    )
    return optimizer


def _bitsandbytes() -> Any:
    """Return bitsandbytes, which is imported only where it is wanted: it takes seconds, and not every machine has it.

    Raises DarkroomError where it is missing or does not load.
    """
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise DarkroomError(
            f"The optimizer's state in 8 bits needs the package bitsandbytes, which cannot be loaded ({error}).",
            advice='Install what the extra "cuda" names (pip install ".[cuda]"), or choose another optimizer.',
        ) from error


def _sgd(groups: Groups, settings: Sgd) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        groups,
        momentum=settings.momentum,
        dampening=settings.dampening,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
        maximize=settings.maximize,
        foreach=settings.foreach,
    )


def _rmsprop(groups: Groups, settings: RmsProp) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(
        groups,
        alpha=settings.alpha,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        centered=settings.centered,
    )


def _adagrad(groups: Groups, settings: Adagrad) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adagrad(
        groups,
        lr_decay=settings.lr_decay,
        weight_decay=settings.weight_decay,
        initial_accumulator_value=settings.initial_accumulator_value,
        eps=settings.eps,
    )
    # torch makes the sums at once. What stands in for a 16-bit weight has its shape only while a step is made.
    optimizer.state.clear()
    optimizer.register_step_pre_hook(lambda *_: _make_missing_sums(optimizer, settings.initial_accumulator_value))
    return optimizer


def _make_missing_sums(optimizer: torch.optim.Optimizer, first: float) -> None:
    for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = {"step": torch.tensor(0.0), "sum": torch.full_like(parameter, first)}


OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "adam": _adam,
    "adafactor": _adafactor,
    "sgd": _sgd,
    "rmsprop": _rmsprop,
    "adagrad": _adagrad,
    "adamw_8bit": _adamw_8bit,
}


def is_fused(settings: OptimizerSettings) -> bool:
    """Whether weights are to move inside the backward pass."""
    return bool(getattr(settings, "fused_back_pass", False))


def build_optimizer(groups: Groups, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Return the optimizer that settings describe over parameter groups (dicts with "params" and "lr").

    Raises KeyError for one that is not there yet, which no run that passed its check has.
    """
    return OPTIMIZERS[settings.name](groups, settings)
