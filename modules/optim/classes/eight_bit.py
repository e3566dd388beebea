"""Optimizers that bitsandbytes provides for some of their settings only; torch's are used for the others."""

from __future__ import annotations

from typing import Any

import torch

from modules.optim.classes.lazy_adagrad import LazyAdagrad

_Groups = list[dict[str, Any]]


def adagrad(groups: _Groups, *, optim_bits: int, min_8bit_size: int, **options: Any) -> torch.optim.Optimizer:
    """Return AdaGrad with state in 32 or in 8 bits.

    `options` are those of `LazyAdagrad`; with 8 bits "lr_decay" and "initial_accumulator_value" have no effect.
    """
    if optim_bits == 32:
        return LazyAdagrad(groups, **options)
    import bitsandbytes

    own = {key: options[key] for key in ("weight_decay", "eps")}
    return _made(bitsandbytes.optim.Adagrad8bit(groups, min_8bit_size=min_8bit_size, **own))


def rmsprop(groups: _Groups, *, optim_bits: int, min_8bit_size: int, **options: Any) -> torch.optim.Optimizer:
    """Return RMSprop with state in 32 or in 8 bits.

    `options` are those of `torch.optim.RMSprop`; with 8 bits "momentum" and "centered" have no effect.
    """
    if optim_bits == 32:
        return torch.optim.RMSprop(groups, **options)
    import bitsandbytes

    own = {key: options[key] for key in ("alpha", "weight_decay", "eps")}
    return _made(bitsandbytes.optim.RMSprop8bit(groups, min_8bit_size=min_8bit_size, **own))


def sgd(groups: _Groups, *, momentum: float, weight_decay: float, min_8bit_size: int) -> torch.optim.Optimizer:
    """Return SGD with 8-bit momentum; torch's where there is none."""
    if momentum == 0:
        return torch.optim.SGD(groups, weight_decay=weight_decay)
    import bitsandbytes

    return _made(
        bitsandbytes.optim.SGD8bit(
            groups, lr=1.0, momentum=momentum, weight_decay=weight_decay, min_8bit_size=min_8bit_size
        )
    )


def _made(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return optimizer  # bitsandbytes is not typed
