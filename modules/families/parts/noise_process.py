"""The noise process a model was trained with, as its diffusers scheduler config tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas, rescaled_to_zero_snr
from modules.system.errors import DarkroomError


def scheduler_with(scheduler: Mapping[str, Any], *, prediction: str, zero_terminal_snr: str) -> Mapping[str, Any]:
    """Return a scheduler config with what the user says of the model in place of what it says of itself.

    `prediction` is "auto", "epsilon" or "v_prediction", `zero_terminal_snr` is "auto", "on" or "off"; automatic leaves
    what is there. Training, samples and whatever is saved all follow the config that is returned.
    """
    said: dict[str, Any] = {}
    if prediction != "auto":
        said["prediction_type"] = prediction
    if zero_terminal_snr != "auto":
        said["rescale_betas_zero_snr"] = zero_terminal_snr == "on"
    return {**scheduler, **said}


def process_of(scheduler: Mapping[str, Any], *, name: str) -> DDPMProcess:
    """Return the forward process of a scheduler config; `name` is the model's, for messages.

    Raises DarkroomError for a prediction that is not known, and for epsilon at zero terminal SNR: where nothing is left
    of the image, the noise is the input itself and nothing can be learned from naming it (Lin et al. 2023, section
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
            advice="Set what the model predicts to v-prediction, or zero terminal SNR to off.",
        )
    abar_T = cumulative_alphas(
        num_timesteps=int(scheduler.get("num_train_timesteps", 1000)),
        beta_start=float(scheduler.get("beta_start", 0.00085)),
        beta_end=float(scheduler.get("beta_end", 0.012)),
        beta_schedule=scheduler.get("beta_schedule", "scaled_linear"),
    )
    return DDPMProcess(rescaled_to_zero_snr(abar_T) if is_zero_snr else abar_T, prediction)
