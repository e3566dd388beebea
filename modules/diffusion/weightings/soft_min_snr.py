"""Soft-min-SNR: min-SNR without its kink (Crowson et al. 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.diffusion.weightings.spec import WeightingSpec

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess
    from modules.diffusion.process_spec import PredictionType


def soft_min_snr_weights(snr_B: torch.Tensor, *, gamma: float, prediction_type: PredictionType) -> torch.Tensor:
    """Return the soft-min-SNR loss weights, shape (B,).

    Crowson et al. 2024, "Scalable High-Resolution Pixel-Space Image Synthesis with Hourglass Diffusion Transformers"
    (arXiv 2401.11605), section 3.3: the weight on the x_0 loss is `1 / (1 / snr + 1 / gamma)`; on the epsilon loss that
    is `gamma / (snr + gamma)`, and on the v loss `gamma snr / ((snr + gamma) (snr + 1))`.
    """
    epsilon_B = gamma / (snr_B + gamma)
    return epsilon_B if prediction_type == "epsilon" else epsilon_B * snr_B / (snr_B + 1.0)


def _weights(process: NoiseProcess, timesteps_B: torch.Tensor, gamma: float) -> torch.Tensor:
    return soft_min_snr_weights(process.snr(timesteps_B), gamma=gamma, prediction_type=process.prediction_type)


SPEC = WeightingSpec(
    "soft_min_snr", "Soft-min-SNR", _weights, "Soft-min-SNR is the same without a sudden limit.", uses_gamma=True
)
