"""Loss weights as functions of the signal-to-noise ratio."""

from __future__ import annotations

import torch

from modules.diffusion.process import PredictionType


def min_snr_weights(snr_B: torch.Tensor, *, gamma: float, prediction_type: PredictionType) -> torch.Tensor:
    """Return the min-SNR-gamma loss weights, shape (B,).

    Hang et al. 2023, "Efficient Diffusion Training via Min-SNR Weighting Strategy", section 3.4: the weight on
    the x_0 loss is `min(snr, gamma)`; on the epsilon loss that is `min(snr, gamma) / snr`, and on the v loss
    `min(snr, gamma) / (snr + 1)`.
    """
    clipped_B = snr_B.clamp(max=gamma)
    return clipped_B / snr_B if prediction_type == "epsilon" else clipped_B / (snr_B + 1.0)
