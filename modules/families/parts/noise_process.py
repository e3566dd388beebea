"""The noise process a model was trained with, as its diffusers scheduler config tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas, rescaled_to_zero_snr
from modules.errors import DarkroomError


def process_of(scheduler: Mapping[str, Any], *, name: str) -> DDPMProcess:
    """Return the forward process of a scheduler config; `name` is the model's, for messages.

    Raises DarkroomError for a prediction that is not known, and for epsilon at zero terminal SNR: where nothing is left
    of the picture, the noise is the input itself and nothing can be learned from naming it (Lin et al. 2023, section
    3.1).
    """
    prediction = scheduler.get("prediction_type", "epsilon")
    if prediction not in ("epsilon", "v_prediction"):
        raise DarkroomError(
            f"{name} predicts {prediction!r}; only models that predict epsilon or v_prediction can be trained.",
            advice="Choose another model, or correct prediction_type in its scheduler_config.json.",
        )
    is_zero_snr = bool(scheduler.get("rescale_betas_zero_snr", False))
    if is_zero_snr and prediction == "epsilon":
        raise DarkroomError(
            f"{name} is to predict epsilon with zero terminal SNR, which cannot be learned: the last step is noise.",
            advice="In scheduler_config.json prediction_type must be v_prediction, or rescale_betas_zero_snr false.",
        )
    abar_T = cumulative_alphas(
        num_timesteps=int(scheduler.get("num_train_timesteps", 1000)),
        beta_start=float(scheduler.get("beta_start", 0.00085)),
        beta_end=float(scheduler.get("beta_end", 0.012)),
        beta_schedule=scheduler.get("beta_schedule", "scaled_linear"),
    )
    return DDPMProcess(rescaled_to_zero_snr(abar_T) if is_zero_snr else abar_T, prediction)
