"""Optimizers that bitsandbytes provides for some of their settings only; torch's are used for the others."""

from __future__ import annotations

from typing import Any

import torch


class LazyAdagrad(torch.optim.Adagrad):
    """torch's AdaGrad, whose sums of squared gradients are created at the first step instead of in the constructor.

    A master weight may be empty between steps.
    """

    def __init__(self, groups: list[dict[str, Any]], *, initial_accumulator_value: float, **options: Any) -> None:
        """`options` are the options of `torch.optim.Adagrad`."""
        super().__init__(groups, initial_accumulator_value=initial_accumulator_value, **options)
        self.state.clear()
        self.register_step_pre_hook(lambda *_: self._make_missing_sums(initial_accumulator_value))

    def _make_missing_sums(self, first: float) -> None:
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if not self.state[parameter]:
                self.state[parameter] = {"step": torch.tensor(0.0), "sum": torch.full_like(parameter, first)}


_Groups = list[dict[str, Any]]


def adagrad(groups: _Groups, *, optim_bits: int, min_8bit_size: int, **options: Any) -> torch.optim.Optimizer:
    """Return AdaGrad with state in 32 or in 8 bits.

    `options` are the options of `LazyAdagrad`; with 8 bits "lr_decay" and "initial_accumulator_value" have no effect.
    """
    if optim_bits == 32:
        return LazyAdagrad(groups, **options)
    import bitsandbytes

    supported = {key: options[key] for key in ("weight_decay", "eps")}
    return _as_optimizer(bitsandbytes.optim.Adagrad8bit(groups, min_8bit_size=min_8bit_size, **supported))


def rmsprop(groups: _Groups, *, optim_bits: int, min_8bit_size: int, **options: Any) -> torch.optim.Optimizer:
    """Return RMSprop with state in 32 or in 8 bits.

    `options` are the options of `torch.optim.RMSprop`; with 8 bits "momentum" and "centered" have no effect.
    """
    if optim_bits == 32:
        return torch.optim.RMSprop(groups, **options)
    import bitsandbytes

    supported = {key: options[key] for key in ("alpha", "weight_decay", "eps")}
    return _as_optimizer(bitsandbytes.optim.RMSprop8bit(groups, min_8bit_size=min_8bit_size, **supported))


def sgd(groups: _Groups, *, momentum: float, weight_decay: float, min_8bit_size: int) -> torch.optim.Optimizer:
    """Return SGD with 8-bit momentum; torch's SGD without momentum."""
    if momentum == 0:
        return torch.optim.SGD(groups, weight_decay=weight_decay)
    import bitsandbytes

    return _as_optimizer(
        bitsandbytes.optim.SGD8bit(
            groups, lr=1.0, momentum=momentum, weight_decay=weight_decay, min_8bit_size=min_8bit_size
        )
    )


def _as_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return optimizer  # bitsandbytes is not typed
