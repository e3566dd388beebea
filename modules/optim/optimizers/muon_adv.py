"""Muon, advanced."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.advanced import (
    ADV_OPTM,
    COMPILE,
    SIMPLIFIED_ADEMAMIX,
    CautiousDecay,
    FactoredState,
    OrthogonalGradient,
)
from modules.optim.terms.general import Beta1, FusedBackPass, Nesterov, WeightDecay, advanced
from modules.optim.terms.muon import (
    AdamRate,
    AdamSized,
    AuxiliaryAdam,
    FasterIteration,
    HiddenLayers,
    IterationSteps,
    LayersArePatterns,
    LowRank,
    LowRankSize,
    MarsCorrection,
    NormuonVariant,
    TextRate1,
    TextRate2,
    WithAdam,
    advanced_muon_arguments,
    advanced_muon_state_bytes,
    filter_problems,
)
from modules.settings.field import When


class MuonAdv(OptimizerSettings):
    """Muon, advanced."""

    name: Literal["muon_adv"] = "muon_adv"
    beta1: Beta1 = 0.9
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    accelerated_ns: FasterIteration = False
    ns_steps: IterationSteps = 5
    low_rank_ortho: LowRank = False
    ortho_rank: LowRankSize = 128
    rms_rescaling: AdamSized = True
    nnmf_factor: FactoredState = False
    fused_back_pass: FusedBackPass = False
    muon_with_aux_adam: WithAdam = True
    muon_hidden_layers: HiddenLayers = ""
    muon_adam_regex: LayersArePatterns = False
    muon_adam_lr: AdamRate = 1e-6
    muon_te1_adam_lr: TextRate1 = None
    muon_te2_adam_lr: TextRate2 = None
    muon_adam_config: AuxiliaryAdam = AuxiliaryAdam()
    nesterov: Nesterov = True
    normuon_variant: NormuonVariant = True
    beta2_normuon: Annotated[
        float,
        Ge(0),
        Lt(1),
        advanced(
            "NorMuon: beta 2",
            "Decay of the running average of the rows' squared norms.",
            applies_when=When("normuon_variant", (True,)),
        ),
    ] = 0.95
    orthogonal_gradient: OrthogonalGradient = False
    approx_mars: MarsCorrection = False


def _arguments(settings: MuonAdv) -> dict[str, Any]:
    return {
        "beta1": settings.beta1,
        "beta2_normuon": settings.beta2_normuon,
        **advanced_muon_arguments(settings),
    }


def _state_bytes(settings: MuonAdv, shape: Shape) -> float:
    return advanced_muon_state_bytes(settings, shape, has_squares=False)


SPEC = OptimizerSpec(
    settings=MuonAdv,
    label="Muon (advanced)",
    factory="modules.optim.classes.advanced:MuonAdv",
    options_of="modules.optim.classes.muon_groups:options_of",
    arguments=_arguments,
    state_bytes=_state_bytes,
    packages=(ADV_OPTM,),
    reads_memory_in_order=always,
    problems=filter_problems,
    removed=COMPILE | SIMPLIFIED_ADEMAMIX,
)
