"""P2, perception prioritized weighting: reduces the weight of nearly clean timesteps (Choi et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.diffusion.weightings.spec import WeightingSpec

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess
    from modules.diffusion.process_spec import PredictionType


def p2_weights(snr_B: torch.Tensor, *, gamma: float, prediction_type: PredictionType) -> torch.Tensor:
    """Return the P2 loss weights, shape (B,).

    Choi et al. 2022, "Perception Prioritized Training of Diffusion Models", eq. 8 with k = 1: `(1 + snr)^-gamma` on the
    epsilon loss. For v-prediction 1 is added to the SNR, as in OneTrainer.
    """
    base_B = 1.0 + (snr_B if prediction_type == "epsilon" else snr_B + 1.0)
    return base_B.pow(-gamma)


def _weights(process: NoiseProcess, timesteps_B: torch.Tensor, gamma: float) -> torch.Tensor:
    return p2_weights(process.snr(timesteps_B), gamma=gamma, prediction_type=process.prediction_type)


SPEC = WeightingSpec(
    "p2", "P2", _weights, "P2 prioritizes the timesteps at which the content of an image appears.", uses_gamma=True
)
