"""Which weights Muon updates: the matrices and kernels of hidden layers; its auxiliary Adam has the others."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from torch import nn

from modules.optim.param_groups import OptionsOf, TrainGroup
from modules.optim.terms.muon import MuonFields, adam_rate, is_hidden
from modules.system.errors import DarkroomError


def options_of(settings: MuonFields) -> OptionsOf:
    """Return the options of each weight's group: "use_muon", and the rate of its own that the Adam has.

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
