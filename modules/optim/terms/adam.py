"""What Adam and AdamW share: the arguments of torch's classes, and their state."""

from __future__ import annotations

import math
from typing import Any, Protocol

from modules.optim.spec import Shape


class AdamFields(Protocol):
    """The settings that torch's Adam and AdamW have in common."""

    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def amsgrad(self) -> bool: ...
    @property
    def maximize(self) -> bool: ...
    @property
    def fused(self) -> bool: ...
    @property
    def foreach(self) -> bool: ...


def adam_arguments(settings: AdamFields) -> dict[str, Any]:
    """Return the keyword arguments of torch's Adam or AdamW."""
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "amsgrad": settings.amsgrad,
        "maximize": settings.maximize,
        "fused": settings.fused,
        "foreach": settings.foreach and not settings.fused,
    }


def adam_state_bytes(settings: AdamFields, shape: Shape) -> float:
    """Return the bytes of the averages of gradients and of their squares, and with AMSGrad of the maximum."""
    return (12.0 if settings.amsgrad else 8.0) * math.prod(shape)
