"""Muon (Jordan et al. 2024)."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.optim.spec import DARKROOM, LARGER_RATES, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.advanced import ADV_OPTM, COMPILE, SIMPLIFIED_ADEMAMIX
from modules.optim.terms.arguments import by_name
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPass, Momentum, Nesterov, WeightDecay
from modules.optim.terms.muon import (
    AdamRate,
    AdvancedMuon,
    AuxiliaryAdam,
    HiddenLayers,
    LayersArePatterns,
    TextRate1,
    TextRate2,
    WithAdam,
    adam_arguments,
    advanced_muon_state_bytes,
    filter_problems,
)
from modules.settings.field import When, advanced_setting


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
    options_of="modules.optim.classes.muon:options_of",
    arguments=by_name(more=lambda s: adam_arguments(s.muon_adam_config, betas=(0.9, 0.95), eps=1e-10)),
    state_bytes=_state_bytes,
    rates=LARGER_RATES,
    problems=filter_problems,
)


# Muon and AdaMuon of adv-optm.


class MuonAdv(AdvancedMuon):
    """Muon, advanced: with further options for its state and its momentum."""

    name: Literal["muon_adv"] = "muon_adv"
    beta2_normuon: Annotated[
        float,
        *Interval(ge=0, lt=1),
        advanced_setting(
            "NorMuon: beta 2",
            "Decay of the running average of the rows' squared norms.",
            applies_when=When("normuon_variant", (True,)),
        ),
    ] = 0.95


class AdaMuonAdv(AdvancedMuon):
    """AdaMuon, advanced: Muon with step sizes from the squared gradients, as in Adam."""

    name: Literal["adamuon_adv"] = "adamuon_adv"
    beta1: Beta1 = 0.95
    beta2: Beta2 = 0.95
    eps: Epsilon = 1e-8
    nesterov: Nesterov = False
    use_atan2: Annotated[
        bool,
        advanced_setting(
            "Use atan2",
            "Uses atan2 instead of a division by the squared gradients: bounded, without an epsilon.",
            applies_when=When("normuon_variant", (False,)),
        ),
    ] = False


def _spec(settings: type[Any], label: str, factory: str, *, has_squares: bool) -> OptimizerSpec[Any]:
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=f"modules.optim.classes.advanced:{factory}",
        options_of="modules.optim.classes.muon:options_of",
        arguments=by_name(more=lambda s: adam_arguments(s.muon_adam_config)),
        state_bytes=partial(advanced_muon_state_bytes, has_squares=has_squares),
        packages=(ADV_OPTM,),
        reads_memory_in_order=always,
        problems=filter_problems,
        removed=COMPILE | SIMPLIFIED_ADEMAMIX,
    )


MUON_ADV = _spec(MuonAdv, "Muon (advanced)", "MuonAdv", has_squares=False)

ADAMUON_ADV = _spec(AdaMuonAdv, "AdaMuon (advanced)", "AdaMuonAdv", has_squares=True)
