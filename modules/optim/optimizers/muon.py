"""Muon (Jordan et al. 2024) for matrices, with Adam for all other weights."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import Momentum, WeightDecay
from modules.optim.terms.muon import (
    AdamRate,
    AuxiliaryAdam,
    HiddenLayers,
    LayersArePatterns,
    TextRate1,
    TextRate2,
    WithAdam,
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


SPEC = OptimizerSpec(
    settings=Muon,
    label="Muon",
    rates=LARGER_RATES,
)
