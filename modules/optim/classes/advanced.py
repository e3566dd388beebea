"""The advanced optimizers of adv-optm, made fit for steps of some weights at a time and for backups.

The library creates all state in the constructor, for the shapes that the weights have there, but a master weight may be
empty between steps. Here the state of a weight is created at its first step. Its own stochastic rounding stays off.
"""

from __future__ import annotations

from typing import Any

import adv_optm  # type: ignore[import-untyped]
import torch
from torch import nn

from modules.optim.classes.muon import require_hidden_layers
from modules.optim.terms.advanced import LOWEST_BETA2
from modules.system.seeds import derive_seed

Groups = list[dict[str, Any]]


def _with_state_at_first_step(kind: type[Any]) -> type[Any]:
    class WithStateAtFirstStep(kind):  # type: ignore[misc]
        """An optimizer of the library, with the library's options, whose constructor creates no state."""

        def __init__(self, groups: Groups, **options: Any) -> None:
            super().__init__(groups, stochastic_rounding=False, **options)
            if getattr(self, "kourkoutas_beta", False):
                self.kourkoutas_helper = DynamicBeta2(self.state)

        def init_step(self) -> None:
            """Create no state yet."""
            _note_precision(self.param_groups)

    return WithStateAtFirstStep


AdamWAdv = _with_state_at_first_step(adv_optm.AdamW_adv)
AdoptAdv = _with_state_at_first_step(adv_optm.Adopt_adv)
LionAdv = _with_state_at_first_step(adv_optm.Lion_adv)
SignSgdAdv = _with_state_at_first_step(adv_optm.SignSGD_adv)


def _with_hidden_layers(kind: type[Any]) -> type[Any]:
    class WithHiddenLayers(_with_state_at_first_step(kind)):  # type: ignore[misc]
        """A Muon of the library; groups with `use_muon` off use its Adam."""

        def __init__(self, groups: Groups, **options: Any) -> None:
            require_hidden_layers(groups)
            super().__init__(groups, **options)

        def _muon_step_parameter(self, p: nn.Parameter, grad: torch.Tensor, state: Any, group: Any, *rest: Any) -> None:
            super()._muon_step_parameter(p, grad, state, group, *rest[:-1], _sketch(p, state, group))

    return WithHiddenLayers


MuonAdv = _with_hidden_layers(adv_optm.Muon_adv)
AdaMuonAdv = _with_hidden_layers(adv_optm.AdaMuon_adv)


class ProdigyAdv(adv_optm.Prodigy_adv):  # type: ignore[misc]
    """Prodigy with the options of the library. Its sums over all weights are kept in the groups between steps."""

    def __init__(self, groups: Groups, **options: Any) -> None:
        super().__init__(groups, stochastic_rounding=False, **options)
        _note_precision(self.param_groups)
        if self.kourkoutas_beta:
            self.kourkoutas_helper = DynamicBeta2(self.state)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all weights that have a gradient, and the estimate of the learning rate."""
        devices = {p.device for group in self.param_groups for p in group["params"]}  # some weights may be offloaded
        device = min(devices, key=lambda d: d.type == "cpu", default=torch.device("cpu"))
        # The library starts the sums of a step at the end of the step before, which a resumed run has not taken.
        self.d_denom = self.d_numerator = torch.zeros((), device=device)
        self.init_step()
        super().step()


class DynamicBeta2:
    """Beta 2 for each weight tensor, lower while its gradients are larger than usual (Kassinos 2025, Kourkoutas-β).

    It takes the place of the library's helper, which keeps the last gradient norms outside of the state, so that a
    backup lacks them, and which expects all weights of a step before the first of the next.
    """

    smallest = LOWEST_BETA2
    decay = 0.95
    tiny = 1e-9

    def __init__(self, state: Any) -> None:
        """`state` is the optimizer's, by parameter."""
        self._state = state

    def maybe_prepare_step(self, current_step: int, device: torch.device) -> None:
        """Do nothing: beta 2 is computed when it is read."""

    def get_beta2(self, p: nn.Parameter, group: dict[str, Any]) -> torch.Tensor:
        """Return beta 2 for this step, from the norm of the last gradient relative to its running average.

        It has as many dimensions as the weight and one element, so that it needs not be read by the host.
        """
        state = self._state[p]
        for key in ("beta2_norm", "beta2_mean_norm"):
            if key not in state:
                state[key] = torch.zeros(1, device=p.device)
        state["beta2_mean_norm"].lerp_(state["beta2_norm"], 1.0 - self.decay)
        raw = state["beta2_norm"] / (state["beta2_mean_norm"] + self.tiny)
        largest = group["betas"][1]
        beta2: torch.Tensor = largest - (largest - self.smallest) * (raw / (1.0 + raw))
        return beta2.reshape((1,) * p.dim())

    def accumulate_gradient_sq_norm(self, p: nn.Parameter, grad: torch.Tensor) -> None:
        """Keep the norm of the gradient for the next step."""
        self._state[p]["beta2_norm"] = torch.linalg.vector_norm(grad.detach().float()).reshape(1)


def _note_precision(groups: Groups) -> None:
    """Write what the library writes to a group with the first state: a resumed run has the state already."""
    for group in groups:
        precision = group.get("state_precision", "auto")  # Lion has none
        group["actual_state_precision"] = "auto" if precision == "factored" else precision


def _sketch(parameter: nn.Parameter, state: dict[str, Any], group: dict[str, Any]) -> torch.Tensor | None:
    """Return the random matrix of a low-rank orthogonalization; None without it.

    It is a function of the number of steps of the weight; the library's generator is global and not in backups.
    """
    if not group["low_rank_ortho"]:
        return None
    count = state["sketches"] = state.get("sketches", 0) + 1
    rows, columns = state["effective_shape"] if state["factored"] else (parameter.shape[0], parameter[0].numel())
    generator = torch.Generator(parameter.device).manual_seed(derive_seed(0, "low-rank sketch", count))
    rank = min(group["ortho_rank"], rows, columns)
    return torch.randn(columns, rank, device=parameter.device, dtype=parameter.dtype, generator=generator)
