"""The loss weightings with their formulas, one record each. They only call methods of their tensors.

A formula takes the process, timesteps (B,) and the gamma setting and returns the loss weights of these timesteps, shape
(B,), finite at every signal-to-noise ratio, 0 and infinity included; or None if all are equal. It gets the ratio and
the prediction type from the process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.diffusion.process_spec import PredictionType, ProcessSpec
from modules.system.errors import DarkroomError

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess

_MIN_SNR = 1e-8  # the least SNR that formulas divide by, for an epsilon model at zero terminal SNR
_HIGHEST_DEBIASED_SNR = 1000.0
_MIN_SIGMA = 1e-3  # the smallest of a flow model's thousand discrete noise levels

_Formula = Callable[["NoiseProcess", "torch.Tensor", float], "torch.Tensor | None"]
_DDPM: tuple[PredictionType, ...] = ("epsilon", "v_prediction")
_FLOW: tuple[PredictionType, ...] = ("flow",)


@dataclass(frozen=True, slots=True)
class GammaLimit:
    """A gamma above which a weighting is rarely of use: the effect, as the end of a sentence, and the advice."""

    value: float
    effect: str
    advice: str


@dataclass(frozen=True, slots=True)
class WeightingSpec:
    """A loss weighting. `help` is a sentence for its list, which may be empty.

    `predictions` are the prediction types for which its formula is defined. `gamma_help` describes the gamma setting
    and its usual values; empty if it has no gamma. `onetrainer` is its name in OneTrainer's configs.
    `kohya_gamma` is sd-scripts' key for gamma in configs and metadata, `kohya_flag` the key for the weighting itself.
    """

    name: str
    label: str
    formula: _Formula
    help: str = ""
    predictions: tuple[PredictionType, ...] = _DDPM
    gamma_help: str = ""
    gamma_limit: GammaLimit | None = None
    onetrainer: str = ""
    kohya_gamma: str = ""
    kohya_flag: str = ""

    def weights(self, process: NoiseProcess, timesteps_B: torch.Tensor, gamma: float) -> torch.Tensor | None:
        """Return the loss weights of these timesteps, shape (B,), or None if all are equal.

        Raises DarkroomError for a process whose prediction type has no formula.
        """
        self.require(process)
        return self.formula(process, timesteps_B, gamma)

    def require(self, process: NoiseProcess) -> None:
        """Raise DarkroomError if the weighting is not defined for the prediction type of a process."""
        if process.prediction_type not in self.predictions:
            sentence, advice = self.refusal(process.spec, [process.prediction_type])
            raise DarkroomError(sentence, advice=advice)

    def refusal(self, process: ProcessSpec, predictions: Collection[str]) -> tuple[str, str]:
        """Return the sentence and the advice for models of a process that have one of these prediction types.

        Both are empty if one of the types has a formula.
        """
        if not set(predictions).isdisjoint(self.predictions):
            return "", ""
        others = [spec.label for spec in weightings_for(predictions).values()]
        return process.undefined_message(f"The loss weighting {self.label}"), f"Choose one of: {', '.join(others)}."


def min_snr_weights(snr_B: torch.Tensor, *, gamma: float, prediction_type: PredictionType) -> torch.Tensor:
    """Return the min-SNR-gamma loss weights, shape (B,): nearly clean timesteps count less.

    Hang et al. 2023, "Efficient Diffusion Training via Min-SNR Weighting Strategy", section 3.4: the weight on
    the x_0 loss is `min(snr, gamma)`; on the epsilon loss that is `min(snr, gamma) / snr`, and on the v loss
    `min(snr, gamma) / (snr + 1)`. Raises ValueError for another prediction type.
    """
    if _is_epsilon(prediction_type):
        snr_B = snr_B.clamp(min=_MIN_SNR)
        return snr_B.clamp(max=gamma) / snr_B
    return snr_B.clamp(max=gamma) / (snr_B + 1.0)


def soft_min_snr_weights(snr_B: torch.Tensor, *, gamma: float, prediction_type: PredictionType) -> torch.Tensor:
    """Return the soft-min-SNR loss weights, shape (B,): min-SNR without its kink.

    Crowson et al. 2024, "Scalable High-Resolution Pixel-Space Image Synthesis with Hourglass Diffusion Transformers"
    (arXiv 2401.11605), section 3.3: the weight on the x_0 loss is `1 / (1 / snr + 1 / gamma)`; on the epsilon loss that
    is `gamma / (snr + gamma)`, and on the v loss `gamma snr / ((snr + gamma) (snr + 1))`. Raises ValueError for another
    prediction type.
    """
    epsilon_B = gamma / (snr_B + gamma)
    return epsilon_B if _is_epsilon(prediction_type) else epsilon_B * snr_B / (snr_B + 1.0)


def debiased_weights(snr_B: torch.Tensor, *, prediction_type: PredictionType) -> torch.Tensor:
    """Return the debiased estimation loss weights, shape (B,): nearly clean timesteps count less by the root of SNR.

    Yu et al. 2023, "Debias the Training of Diffusion Models", section 4: `1 / sqrt(snr)` on the epsilon loss, with the
    SNR limited to 1000. The paper does not cover v-prediction; there, it is `1 / sqrt(snr + 1)` as in OneTrainer, which
    is finite without any signal. Raises ValueError for another prediction type.
    """
    limited_B = snr_B.clamp(min=_MIN_SNR, max=_HIGHEST_DEBIASED_SNR)
    return (limited_B if _is_epsilon(prediction_type) else limited_B + 1.0).rsqrt()


def p2_weights(snr_B: torch.Tensor, *, gamma: float, prediction_type: PredictionType) -> torch.Tensor:
    """Return the P2 loss weights, shape (B,): perception prioritized weighting.

    Choi et al. 2022, "Perception Prioritized Training of Diffusion Models", eq. 8 with k = 1: `(1 + snr)^-gamma` on the
    epsilon loss. For v-prediction 1 is added to the SNR, as in OneTrainer. Raises ValueError for another prediction
    type.
    """
    base_B = 1.0 + (snr_B if _is_epsilon(prediction_type) else snr_B + 1.0)
    return base_B.pow(-gamma)


def sigma_weights(snr_B: torch.Tensor) -> torch.Tensor:
    """Return the sigma of flow matching at the same SNR, shape (B,): `1 / (1 + sqrt(snr))`, from 0 (clean) to 1.

    A rectified flow `(1 - sigma) x_0 + sigma eps` (Liu et al. 2022) has the SNR `((1 - sigma) / sigma)^2`. So a noise
    level has the same weight for the models of both kinds.
    """
    return 1.0 / (1.0 + snr_B.sqrt())


def sigma_sqrt_weights(snr_B: torch.Tensor) -> torch.Tensor:
    """Return `sigma^-2`, shape (B,): the scheme "sigma_sqrt" of diffusers' and sd-scripts' flow trainers.

    Their noise levels are discrete and at least 1/1000, so sigma is limited to that here, where it is continuous.
    """
    return sigma_weights(snr_B).clamp(min=_MIN_SIGMA).pow(-2.0)


def cos_map_weights(snr_B: torch.Tensor) -> torch.Tensor:
    """Return `2 / (pi (1 - 2 sigma + 2 sigma^2))`, shape (B,): the density of CosMap as a weight.

    Esser et al. 2024, "Scaling Rectified Flow Transformers", section 3.1, eq. 21; the scheme "cosmap" of diffusers' and
    sd-scripts' flow trainers.
    """
    sigma_B = sigma_weights(snr_B)
    return 2.0 / (math.pi * (1.0 - 2.0 * sigma_B + 2.0 * sigma_B.square()))


def _is_epsilon(prediction_type: PredictionType) -> bool:
    """Return whether a model of DDPM predicts epsilon and not v. Raises ValueError for another prediction type."""
    if prediction_type not in _DDPM:
        raise ValueError(f"The weighting has no formula for the prediction type {prediction_type!r}.")
    return prediction_type == "epsilon"


_RECORDS = (
    WeightingSpec(
        "none",
        "None",
        lambda process, timesteps_B, gamma: None,
        "None counts each timestep the same.",
        predictions=(*_DDPM, *_FLOW),
        onetrainer="CONSTANT",
    ),
    WeightingSpec(
        "min_snr",
        "Min-SNR",
        lambda process, timesteps_B, gamma: min_snr_weights(
            process.snr(timesteps_B), gamma=gamma, prediction_type=process.prediction_type
        ),
        "Min-SNR keeps the nearly clean timesteps from dominating; many runs converge faster with it.",
        gamma_help="the clamp, usually 5",
        onetrainer="MIN_SNR_GAMMA",
        kohya_gamma="min_snr_gamma",
    ),
    WeightingSpec(
        "soft_min_snr",
        "Soft-min-SNR",
        lambda process, timesteps_B, gamma: soft_min_snr_weights(
            process.snr(timesteps_B), gamma=gamma, prediction_type=process.prediction_type
        ),
        "Soft-min-SNR is the same without a sudden limit.",
        gamma_help="4 or 5",
    ),
    WeightingSpec(
        "debiased",
        "Debiased estimation",
        lambda process, timesteps_B, gamma: debiased_weights(
            process.snr(timesteps_B), prediction_type=process.prediction_type
        ),
        "Debiased estimation does the same more strongly, and increases the weight of the noisiest timesteps.",
        onetrainer="DEBIASED_ESTIMATION",
        kohya_flag="debiased_estimation",
    ),
    WeightingSpec(
        "p2",
        "P2",
        lambda process, timesteps_B, gamma: p2_weights(
            process.snr(timesteps_B), gamma=gamma, prediction_type=process.prediction_type
        ),
        "P2 prioritizes the timesteps at which the content of an image appears.",
        gamma_help="the exponent, usually 1",
        # With min-SNR's gamma, nearly clean timesteps would not count at all.
        gamma_limit=GammaLimit(
            2.0, "trains on little but the noisiest timesteps", "Set gamma to 1, or to 0.5 for a weaker effect."
        ),
        onetrainer="P2",
    ),
    WeightingSpec(
        "sigma",
        "Sigma",
        lambda process, timesteps_B, gamma: sigma_weights(process.snr(timesteps_B)),
        "Sigma counts a timestep in proportion to its share of noise.",
        onetrainer="SIGMA",
        predictions=(*_DDPM, *_FLOW),
    ),
    WeightingSpec(
        "sigma_sqrt",
        "Sigma-sqrt",
        lambda process, timesteps_B, gamma: sigma_sqrt_weights(process.snr(timesteps_B)),
        "Sigma-sqrt counts nearly clean timesteps far more, by 1 / sigma².",
        predictions=_FLOW,
    ),
    WeightingSpec(
        "cosmap",
        "Cosine map",
        lambda process, timesteps_B, gamma: cos_map_weights(process.snr(timesteps_B)),
        "Cosine map prefers the middle a little, as the timestep distribution of that name does.",
        predictions=_FLOW,
    ),
)

WEIGHTINGS: Mapping[str, WeightingSpec] = {spec.name: spec for spec in _RECORDS}


def weightings_for(predictions: Collection[str]) -> Mapping[str, WeightingSpec]:
    """Return the weightings that have a formula for one of these prediction types, by name."""
    return {name: spec for name, spec in WEIGHTINGS.items() if not set(predictions).isdisjoint(spec.predictions)}


def weighting_labels() -> Mapping[str, str]:
    """Return the labels of the weightings by name."""
    return {name: spec.label for name, spec in WEIGHTINGS.items()}


def weighting_help() -> Mapping[str, str]:
    """Return a sentence for each weighting, by its name."""
    return {name: spec.help for name, spec in WEIGHTINGS.items()}


def help_on_all() -> str:
    """Return the sentences on the weightings, one after another."""
    return " ".join(spec.help for spec in WEIGHTINGS.values() if spec.help)


def help_on_gamma() -> str:
    """Return the help on gamma: its meaning in each weighting that has it."""
    return " ".join(f"{spec.label}: {spec.gamma_help}." for spec in WEIGHTINGS.values() if spec.gamma_help)


def names_with_gamma() -> tuple[str, ...]:
    """Return the names of the weightings that have a gamma."""
    return tuple(name for name, spec in WEIGHTINGS.items() if spec.gamma_help)
