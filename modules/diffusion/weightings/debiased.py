"""Debiased estimation: reduces the weight of nearly clean timesteps by the root of their SNR (Yu et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.diffusion.weightings.spec import LEAST_SNR, WeightingSpec

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess
    from modules.diffusion.process_spec import PredictionType

_HIGHEST_SNR = 1000.0


def debiased_weights(snr_B: torch.Tensor, *, prediction_type: PredictionType) -> torch.Tensor:
    """Return the debiased estimation loss weights, shape (B,).

    Yu et al. 2023, "Debias the Training of Diffusion Models", section 4: `1 / sqrt(snr)` on the epsilon loss, with the
    SNR limited to 1000. The paper does not cover v-prediction; there, it is `1 / sqrt(snr + 1)` as in OneTrainer, which
    is finite without any signal.
    """
    limited_B = snr_B.clamp(min=LEAST_SNR, max=_HIGHEST_SNR)
    return (limited_B if prediction_type == "epsilon" else limited_B + 1.0).rsqrt()


def _weights(process: NoiseProcess, timesteps_B: torch.Tensor, gamma: float) -> torch.Tensor:
    return debiased_weights(process.snr(timesteps_B), prediction_type=process.prediction_type)


SPEC = WeightingSpec(
    "debiased",
    "Debiased estimation",
    _weights,
    "Debiased estimation does the same more strongly, and increases the weight of the noisiest timesteps.",
    kohya_flag="debiased_estimation",
)
