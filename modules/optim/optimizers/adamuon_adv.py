"""AdaMuon, advanced: Muon with step sizes from the squared gradients, as in Adam."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms.advanced import (
    Atan2,
    CautiousDecay,
    Compile,
    FactoredState,
    GradientWeight,
    OrthogonalGradient,
    SimplifiedAdEMAMix,
)
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPassNotYet, Nesterov, WeightDecay
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
)


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
    compile: Compile = False
    fused_back_pass: FusedBackPassNotYet = False
    muon_with_aux_adam: WithAdam = True
    muon_hidden_layers: HiddenLayers = ""
    muon_adam_regex: LayersArePatterns = False
    muon_adam_lr: AdamRate = 1e-6
    muon_te1_adam_lr: TextRate1 = None
    muon_te2_adam_lr: TextRate2 = None
    nesterov: Nesterov = False
    use_atan2: Atan2 = False
    simplified_ademamix: SimplifiedAdEMAMix = False
    alpha_grad: GradientWeight = 100.0
    normuon_variant: NormuonVariant = True
    orthogonal_gradient: OrthogonalGradient = False
    approx_mars: MarsCorrection = False
    muon_adam_config: AuxiliaryAdam = AuxiliaryAdam()


SPEC = OptimizerSpec(
    settings=AdaMuonAdv,
    label="AdaMuon (advanced)",
    rates=LARGER_RATES,
)
