"""Stochastic gradient descent, with optional momentum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from modules.optim.spec import PLAIN_RATES, OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.general import Dampening, Foreach, FusedBackPass, Maximize, Momentum, Nesterov, WeightDecay
from modules.optim.terms.removed import DIFFERENTIABLE
from modules.system.problem import Problem


class Sgd(OptimizerSettings):
    """Stochastic gradient descent, with optional momentum."""

    name: Literal["sgd"] = "sgd"
    momentum: Momentum = 0.0
    dampening: Dampening = 0.0
    weight_decay: WeightDecay = 0.0
    nesterov: Nesterov = False
    foreach: Foreach = False
    maximize: Maximize = False
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Sgd) -> dict[str, Any]:
    return {
        "momentum": settings.momentum,
        "dampening": settings.dampening,
        "weight_decay": settings.weight_decay,
        "nesterov": settings.nesterov,
        "maximize": settings.maximize,
        "foreach": settings.foreach,
    }


def _state_bytes(settings: Sgd, shape: Shape) -> float:
    return (4.0 if settings.momentum else 0.0) * math.prod(shape)


def _problems(settings: Sgd) -> Iterator[Problem]:
    """Yield that Nesterov momentum needs a momentum above 0 without dampening."""
    if settings.nesterov and (settings.momentum == 0 or settings.dampening != 0):
        yield Problem(
            "nesterov",
            f"Nesterov momentum needs a momentum without dampening; momentum is {settings.momentum:g} and dampening "
            f"{settings.dampening:g}.",
            advice="Set the momentum to 0.9 and the dampening to 0, or switch Nesterov momentum off.",
        )


SPEC = OptimizerSpec(
    settings=Sgd,
    label="SGD",
    rates=PLAIN_RATES,
    factory="torch.optim:SGD",
    is_elementwise=True,
    arguments=_arguments,
    state_bytes=_state_bytes,
    problems=_problems,
    removed={"differentiable": DIFFERENTIABLE},
)
