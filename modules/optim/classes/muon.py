"""Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers") with AdamW for the other weights.

torch.optim.Muon is the same for matrices; it refuses convolution kernels, and has no other update for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw

from modules.optim.param_groups import OptionsOf, TrainGroup
from modules.optim.terms.muon import MuonFields, adam_rate, is_hidden
from modules.system.errors import DarkroomError

# Which weights Muon updates: the matrices and kernels of hidden layers; its auxiliary Adam has the others.


def options_of(settings: MuonFields) -> OptionsOf:
    """Return the options of each weight's group: "use_muon", and the rate of the auxiliary Adam.

    Without the auxiliary Adam, all matrices and kernels use Muon, and vectors use Adam at the rate of their unit.
    Weights of no part (trained embeddings) keep the rate of their unit, too.
    """

    def of_weight(group: TrainGroup, name: str, parameter: nn.Parameter) -> Mapping[str, Hashable]:
        has_rows = parameter.dim() >= 2
        if not settings.muon_with_aux_adam:
            return {"use_muon": has_rows}
        if has_rows and is_hidden(name, settings):
            return {"use_muon": True}
        if group.part is None:
            return {"use_muon": False}
        return {"use_muon": False, "rate": adam_rate(group.part, settings)}

    return of_weight


def require_hidden_layers(groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise DarkroomError if none of the optimizer's groups has weights of Muon: its filter is then wrong."""
    if not any(group.get("use_muon", False) for group in groups):
        raise DarkroomError(
            "Muon has no weights to update: no trained matrix belongs to a layer that its settings name.",
            advice="Correct Layers for Muon in the optimizer's settings, or clear it for the layers inside of blocks.",
        )


# The coefficients of the quintic iteration, and their number of iterations (Jordan et al. 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_SMALLEST_NORM = 1e-7


class MuonWithAdam(torch.optim.Optimizer):
    """Muon for the groups with "use_muon", AdamW with the other options for all others. All state is per weight."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        momentum: float,
        weight_decay: float,
        adam_betas: tuple[float, float],
        adam_eps: float,
        adam_weight_decay: float,
        lr: float = 0.02,
    ) -> None:
        """Weights of groups with "use_muon" must have two or more dimensions. DarkroomError if there are none."""
        require_hidden_layers(groups)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "adam_betas": adam_betas,
            "adam_eps": adam_eps,
            "adam_weight_decay": adam_weight_decay,
            "use_muon": False,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not group["use_muon"]:
                self._step_with_adam(parameters, group)
                continue
            for parameter in parameters:
                self._step_with_muon(parameter, group)

    def _step_with_muon(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, gradient, momentum = self.state[parameter], parameter.grad, group["momentum"]
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        average: torch.Tensor = state["momentum_buffer"]
        average.lerp_(gradient, 1.0 - momentum)
        direction = orthogonalize(gradient.lerp(average, momentum).flatten(1))  # Nesterov's
        rows, columns = direction.shape
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
        parameter.add_(direction.view_as(parameter), alpha=-rate)

    def _step_with_adam(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[p] for p in parameters]
        beta1, beta2 = group["adam_betas"]
        adamw(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [],
            [s["step"] for s in states],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["adam_weight_decay"],
            eps=group["adam_eps"],
            maximize=False,
        )


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Return about the closest orthogonal matrix, in bfloat16, shape as given (rows, columns).

    Five Newton-Schulz iterations, which bring all singular values to between 0.5 and 1.5 (Jordan et al. 2024).
    """
    x = matrix.bfloat16()
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.T
    x = x / x.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.T if is_tall else x
