"""AdaMuon, advanced: Muon with step sizes from the squared gradients, as in Adam."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.advanced import (
    ADV_OPTM,
    COMPILE,
    SIMPLIFIED_ADEMAMIX,
    CautiousDecay,
    FactoredState,
    OrthogonalGradient,
)
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPass, Nesterov, WeightDecay, advanced
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


class AdaMuonAdv(OptimizerSettings):
    """AdaMuon, advanced: Muon with step sizes from the squared gradients, as in Adam."""

    name: Literal["adamuon_adv"] = "adamuon_adv"
    beta1: Beta1 = 0.95
    beta2: Beta2 = 0.95
    eps: Epsilon = 1e-8
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
    nesterov: Nesterov = False
    use_atan2: Annotated[
        bool,
        advanced(
            "Use atan2",
            "Uses atan2 instead of a division by the squared gradients: bounded, without an epsilon.",
            applies_when=When("normuon_variant", (False,)),
        ),
    ] = False
    normuon_variant: NormuonVariant = True
    orthogonal_gradient: OrthogonalGradient = False
    approx_mars: MarsCorrection = False


def _arguments(settings: AdaMuonAdv) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "use_atan2": settings.use_atan2,
        **advanced_muon_arguments(settings),
    }


def _state_bytes(settings: AdaMuonAdv, shape: Shape) -> float:
    return advanced_muon_state_bytes(settings, shape, has_squares=True)


SPEC = OptimizerSpec(
    settings=AdaMuonAdv,
    label="AdaMuon (advanced)",
    factory="modules.optim.classes.advanced:AdaMuonAdv",
    options_of="modules.optim.classes.muon_groups:options_of",
    arguments=_arguments,
    state_bytes=_state_bytes,
    packages=(ADV_OPTM,),
    reads_memory_in_order=always,
    problems=filter_problems,
    removed=COMPILE | SIMPLIFIED_ADEMAMIX,
)
