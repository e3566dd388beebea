"""The noise process a model was trained with, from its diffusers scheduler config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas, rescale_to_zero_snr
from modules.system.errors import DarkroomError


def scheduler_with(scheduler: Mapping[str, Any], *, prediction: str, zero_terminal_snr: str) -> Mapping[str, Any]:
    """Return a scheduler config with the user's prediction type and zero terminal SNR in place of the model's own.

    `prediction` is "auto", "epsilon" or "v_prediction", `zero_terminal_snr` is "auto", "on" or "off"; "auto" keeps the
    model's value. Training, samples and saved models all use the returned config.
    """
    chosen: dict[str, Any] = {}
    if prediction != "auto":
        chosen["prediction_type"] = prediction
    if zero_terminal_snr != "auto":
        chosen["rescale_betas_zero_snr"] = zero_terminal_snr == "on"
    return {**scheduler, **chosen}


def process_of(scheduler: Mapping[str, Any], *, name: str) -> DDPMProcess:
    """Return the forward process of a scheduler config; `name` is the model's, for messages.

    Raises DarkroomError for an unknown prediction type, and for epsilon at zero terminal SNR: at the last timestep the
    input is the noise itself, so predicting it is trivial (Lin et al. 2023, section 3.1).
    """
    prediction = scheduler.get("prediction_type", "epsilon")
    if prediction not in ("epsilon", "v_prediction"):
        raise DarkroomError(
            f"{name} has the prediction type {prediction!r}; only epsilon and v_prediction are supported.",
            advice="Choose another model, or correct prediction_type in its scheduler_config.json.",
        )
    is_zero_snr = bool(scheduler.get("rescale_betas_zero_snr", False))
    if is_zero_snr and prediction == "epsilon":
        raise DarkroomError(
            f"{name} predicts epsilon with zero terminal SNR, which cannot be trained: its last timestep is noise.",
            advice="Set the prediction type to v-prediction, or turn zero terminal SNR off.",
        )
    abar_T = cumulative_alphas(
        num_timesteps=int(scheduler.get("num_train_timesteps", 1000)),
        beta_start=float(scheduler.get("beta_start", 0.00085)),
        beta_end=float(scheduler.get("beta_end", 0.012)),
        beta_schedule=scheduler.get("beta_schedule", "scaled_linear"),
    )
    return DDPMProcess(rescale_to_zero_snr(abar_T) if is_zero_snr else abar_T, prediction)
