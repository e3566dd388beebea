"""Min-SNR-gamma: reduces the weight of nearly clean timesteps (Hang et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.diffusion.weightings.spec import LEAST_SNR, WeightingSpec

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess
    from modules.diffusion.process_spec import PredictionType


def min_snr_weights(snr_B: torch.Tensor, *, gamma: float, prediction_type: PredictionType) -> torch.Tensor:
    """Return the min-SNR-gamma loss weights, shape (B,).

    Hang et al. 2023, "Efficient Diffusion Training via Min-SNR Weighting Strategy", section 3.4: the weight on
    the x_0 loss is `min(snr, gamma)`; on the epsilon loss that is `min(snr, gamma) / snr`, and on the v loss
    `min(snr, gamma) / (snr + 1)`.
    """
    if prediction_type == "epsilon":
        snr_B = snr_B.clamp(min=LEAST_SNR)
        return snr_B.clamp(max=gamma) / snr_B
    return snr_B.clamp(max=gamma) / (snr_B + 1.0)


def _weights(process: NoiseProcess, timesteps_B: torch.Tensor, gamma: float) -> torch.Tensor:
    return min_snr_weights(process.snr(timesteps_B), gamma=gamma, prediction_type=process.prediction_type)


SPEC = WeightingSpec(
    "min_snr",
    "Min-SNR",
    _weights,
    "Min-SNR keeps the nearly clean timesteps from dominating; many runs converge faster with it.",
    uses_gamma=True,
    kohya_gamma="min_snr_gamma",
)
