"""Muon (Jordan et al. 2024)."""

from __future__ import annotations

import math
from typing import Literal

from modules.optim.spec import DARKROOM, LARGER_RATES, OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.arguments import by_name
from modules.optim.terms.general import FusedBackPass, Momentum, WeightDecay
from modules.optim.terms.muon import (
    AdamRate,
    AuxiliaryAdam,
    HiddenLayers,
    LayersArePatterns,
    TextRate1,
    TextRate2,
    WithAdam,
    adam_arguments,
    filter_problems,
)


class Muon(OptimizerSettings):
    """Muon (Jordan et al. 2024) for matrices, with Adam for all other weights."""

    name: Literal["muon"] = "muon"
    momentum: Momentum = 0.95
    weight_decay: WeightDecay = 0.0
    muon_with_aux_adam: WithAdam = True
    muon_hidden_layers: HiddenLayers = ""
    muon_adam_regex: LayersArePatterns = False
    muon_adam_lr: AdamRate = 3e-4
    muon_te1_adam_lr: TextRate1 = None
    muon_te2_adam_lr: TextRate2 = None
    muon_adam_config: AuxiliaryAdam = AuxiliaryAdam()
    fused_back_pass: FusedBackPass = False


def _state_bytes(settings: Muon, shape: Shape) -> float:
    """Muon's average of gradients, or Adam's two for vectors; matrices with Adam, too, have two."""
    return (4.0 if len(shape) >= 2 else 8.0) * math.prod(shape)


MUON = OptimizerSpec(
    settings=Muon,
    label="Muon",
    factory="modules.optim.classes.muon:MuonWithAdam",
    library=DARKROOM,
    options_of="modules.optim.classes.muon_groups:options_of",
    arguments=by_name(more=lambda s: adam_arguments(s.muon_adam_config, betas=(0.9, 0.95), eps=1e-10)),
    state_bytes=_state_bytes,
    rates=LARGER_RATES,
    problems=filter_problems,
)
