"""Muon, advanced."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Lt

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms.advanced import (
    CautiousDecay,
    Compile,
    FactoredState,
    GradientWeight,
    OrthogonalGradient,
    SimplifiedAdEMAMix,
)
from modules.optim.terms.general import Beta1, FusedBackPassNotYet, Nesterov, WeightDecay, advanced
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
    compile: Compile = False
    fused_back_pass: FusedBackPassNotYet = False
    muon_with_aux_adam: WithAdam = True
    muon_hidden_layers: HiddenLayers = ""
    muon_adam_regex: LayersArePatterns = False
    muon_adam_lr: AdamRate = 1e-6
    muon_te1_adam_lr: TextRate1 = None
    muon_te2_adam_lr: TextRate2 = None
    nesterov: Nesterov = True
    simplified_ademamix: SimplifiedAdEMAMix = False
    alpha_grad: GradientWeight = 100.0
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
    muon_adam_config: AuxiliaryAdam = AuxiliaryAdam()


SPEC = OptimizerSpec(
    settings=MuonAdv,
    label="Muon (advanced)",
    rates=LARGER_RATES,
)
