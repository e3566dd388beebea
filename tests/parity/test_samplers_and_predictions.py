"""Each sampler supports the prediction types of its record: with a perfect prediction it ends at the image."""

from __future__ import annotations

import pytest
import torch

from modules.diffusion.process import DDPMProcess
from modules.diffusion.process_spec import PredictionType
from modules.sampling.denoising_loop import initial_noise, make_scheduler, run_denoising_loop
from modules.sampling.registry import SAMPLERS, samplers_for
from modules.system.devices import CPU

SCHEDULER = {
    "num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
    "clip_sample": False, "set_alpha_to_one": True, "steps_offset": 1,
}  # fmt: skip
REST = {"tcd": 0.12}  # it ends at timestep 0, whose sigma is 0.03, times the largest value of the noise
# Epsilon with zero terminal SNR is not among them: it cannot be predicted from pure noise, and preflight rejects it.
CLAIMED = [
    (name, prediction, zero_snr)
    for name, spec in SAMPLERS.items()
    for prediction in spec.predictions
    for zero_snr in (False, True)
    if prediction != "epsilon" or not zero_snr
]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("sampler", "prediction", "zero_snr"), CLAIMED)
def test_a_perfect_prediction_ends_at_the_image(sampler: str, prediction: PredictionType, zero_snr: bool) -> None:
    distance = distance_at_the_end(sampler, configured=prediction, given=prediction, zero_snr=zero_snr)
    assert distance < REST.get(sampler, 1e-4)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("sampler", samplers_for(["epsilon"]))
def test_a_prediction_of_another_type_does_not(sampler: str) -> None:
    distance = distance_at_the_end(sampler, configured="epsilon", given="v_prediction", zero_snr=False)
    assert distance > REST.get(sampler, 2e-3)


def distance_at_the_end(sampler: str, *, configured: str, given: PredictionType, zero_snr: bool) -> float:
    """The distance to the image at the end, for a sampler configured for one prediction type and given another."""
    config = {**SCHEDULER, "prediction_type": configured, "rescale_betas_zero_snr": zero_snr}
    scheduler = make_scheduler(sampler, config)
    process = DDPMProcess(make_scheduler("ddim", config).alphas_cumprod, given)
    noise_BCHW, generator = initial_noise((1, 4, 8, 8), seed=5, device=CPU)
    image_BCHW, _ = initial_noise((1, 4, 8, 8), seed=6, device=CPU)

    def perfect(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        abar = _alpha_at(process.alphas_cumprod_T, timestep)
        added_BCHW = (noisy_BCHW - abar.sqrt() * image_BCHW) / (1 - abar).sqrt()
        if given == "epsilon":
            return added_BCHW
        return abar.sqrt() * added_BCHW - (1 - abar).sqrt() * image_BCHW

    end_BCHW = run_denoising_loop(
        perfect, scheduler, noise_BCHW, num_steps=20, generator=generator, on_step=lambda: None
    )
    return float((end_BCHW - image_BCHW).abs().max())


def _alpha_at(alphas_T: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """Between two timesteps, where Karras' noise levels lie, on the line between their noise levels' logarithms."""
    lower = timestep.floor().long().clamp(0, len(alphas_T) - 1)
    upper = timestep.ceil().long().clamp(0, len(alphas_T) - 1)
    low, high = (torch.log((1 - a) / a.clamp(min=2**-24)) for a in (alphas_T[lower], alphas_T[upper]))
    return 1 / (1 + torch.exp(torch.lerp(low, high, (timestep - timestep.floor()).float())))
