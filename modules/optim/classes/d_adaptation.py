"""D-Adaptation's optimizers (Defazio and Mishchenko 2023) for cases in which the package's classes fail."""

from __future__ import annotations

from typing import Any

import dadaptation
import torch

_ANY_EPSILON = 1e-6


def ada_grad(groups: list[dict[str, Any]], *, eps: float, **options: Any) -> torch.optim.Optimizer:
    """Return D-Adapt AdaGrad; the constructor refuses an epsilon of 0, which its step supports."""
    optimizer: torch.optim.Optimizer = dadaptation.DAdaptAdaGrad(groups, eps=eps or _ANY_EPSILON, **options)
    for group in optimizer.param_groups:
        group["eps"] = eps
    return optimizer


class DAdaptSGD(dadaptation.DAdaptSGD):  # type: ignore[misc]  # the package is not typed
    """D-Adapt SGD that does nothing in a step without a learning rate or a gradient, where the package's fails."""

    def step(self, closure: Any = None) -> Any:
        """Step as the package does; without a learning rate and without gradients nothing changes."""
        has_rate = any(group["lr"] > 0 for group in self.param_groups)
        gradients = (p.grad for group in self.param_groups for p in group["params"] if p.grad is not None)
        if has_rate and any(bool(gradient.any()) for gradient in gradients):
            return super().step(closure)
        return None
