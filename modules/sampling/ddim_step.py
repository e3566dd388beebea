"""One DDIM step as a Gaussian: mean, standard deviation, density. For methods that train on the denoising loop.

diffusers' own step returns only the next latents, and NaN at zero terminal SNR with eta above 0. The steps here equal
its DDIMScheduler's, except for rounding, and also return the log-probability of the next latents.

Notation (Song et al. 2021, "Denoising Diffusion Implicit Models", eq. 12 and 16), for a step from t to a less noisy p:

    x_p = sqrt(abar_p) x0 + sqrt(1 - abar_p - sigma^2) eps + sigma z
    sigma^2 = eta^2 (1 - abar_p) / (1 - abar_t) (1 - abar_t / abar_p)

Coefficients are Python numbers, so that nothing waits for a GPU; results are float32 for any input dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from modules.diffusion.process import DDPMProcess, NoiseProcess
from modules.diffusion.process_spec import PredictionType
from modules.sampling.gaussian_step import divergence, log_density
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class DdimStep:
    """The step from `timestep`, with cumulative alpha `abar`, to the next one, with `abar_next`.

    `eta` scales the fresh noise: 0 is deterministic, 1 is DDPM.
    """

    timestep: int
    abar: float
    abar_next: float
    prediction_type: PredictionType
    eta: float = 0.0

    @property
    def sigma(self) -> float:
        """The standard deviation of the next latents; 0 in a deterministic step. Finite at zero terminal SNR."""
        variance = (1 - self.abar_next) / (1 - self.abar) * (1 - self.abar / self.abar_next)
        return self.eta * math.sqrt(max(variance, 0.0))

    @property
    def reach(self) -> float:
        """How far the mean moves where every value of the model's output moves by 1, in a step without fresh noise."""
        return self._reach(0.0)

    @property
    def influence(self) -> float:
        """How many standard deviations the mean moves where every value of the model's output moves by 1.

        It is the weight of the step in a policy gradient, largest in the last steps. 0 for a deterministic step.
        """
        sigma = self.sigma
        return self._reach(sigma) / sigma if sigma > 0 else 0.0

    def _reach(self, sigma: float) -> float:
        signal, noise = math.sqrt(self.abar), math.sqrt(1 - self.abar)
        direction = math.sqrt(max(1 - self.abar_next - sigma**2, 0.0))
        if self.prediction_type == "epsilon":
            return abs(direction - math.sqrt(self.abar_next) * noise / signal)
        return abs(direction * signal - math.sqrt(self.abar_next) * noise)

    def clean_and_noise(
        self, output_BCHW: torch.Tensor, latents_BCHW: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the clean latents and the noise that a model output implies, float32.

        Epsilon: `x0 = (x - sqrt(1 - abar) eps) / sqrt(abar)`. V-prediction: `x0 = sqrt(abar) x - sqrt(1 - abar) v`,
        `eps = sqrt(abar) v + sqrt(1 - abar) x`, finite also where abar is 0 (Salimans and Ho 2022, appendix D).
        """
        signal, noise = math.sqrt(self.abar), math.sqrt(1 - self.abar)
        output_BCHW, latents_BCHW = output_BCHW.float(), latents_BCHW.float()
        if self.prediction_type == "epsilon":
            return (latents_BCHW - noise * output_BCHW) / signal, output_BCHW
        return signal * latents_BCHW - noise * output_BCHW, signal * output_BCHW + noise * latents_BCHW

    def mean(self, output_BCHW: torch.Tensor, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the mean of the next latents, float32."""
        clean_BCHW, eps_BCHW = self.clean_and_noise(output_BCHW, latents_BCHW)
        # Rounding can make it negative: at zero terminal SNR with eta 1 the two terms are equal.
        direction = math.sqrt(max(1 - self.abar_next - self.sigma**2, 0.0))
        return math.sqrt(self.abar_next) * clean_BCHW + direction * eps_BCHW

    def next_latents(self, mean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor | None) -> torch.Tensor:
        """Return the next latents: the mean plus sigma times standard normal noise; None for a deterministic step."""
        return mean_BCHW if noise_BCHW is None else mean_BCHW + self.sigma * noise_BCHW.float()

    def log_prob(self, next_BCHW: torch.Tensor, mean_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the log-density of next latents under a mean, float32 of shape (B,); 0 without noise."""
        return log_density(next_BCHW, mean_BCHW, self.sigma)

    def kl(self, mean_BCHW: torch.Tensor, reference_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the divergence of two policies' Gaussians, which share sigma, float32 of shape (B,)."""
        return divergence(mean_BCHW, reference_BCHW, self.sigma)

    def clean_before(self, next_BCHW: torch.Tensor, noise_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the clean latents `(x_p - sqrt(1 - abar_p) eps) / sqrt(abar_p)` for a known noise, float32."""
        left_BCHW = next_BCHW.float() - math.sqrt(1 - self.abar_next) * noise_BCHW.float()
        return left_BCHW / math.sqrt(self.abar_next)


def ddim_steps(
    process: NoiseProcess, scheduler_config: Mapping[str, Any], *, num_steps: int, eta: float = 0.0
) -> tuple[DdimStep, ...]:
    """Return the steps of a denoising loop, the noisiest first, with the spacing of the model's scheduler config.

    With zero terminal SNR the spacing is trailing, so that the loop starts at pure noise (Lin et al. 2023, section
    3.3). Timesteps and noise levels are as in diffusers' DDIMScheduler. Latents are never clipped: clip_sample of
    the config is meant for pixels. Raises DarkroomError for more steps than the model has timesteps, for an unknown
    spacing, and for epsilon at zero terminal SNR, where the noise contains no information about the image.
    """
    if not isinstance(process, DDPMProcess):
        raise DarkroomError("DDIM sampling needs a DDPM model, such as SD or SDXL.")
    levels = [float(abar) for abar in process.alphas_cumprod_T.tolist()]
    if levels[-1] <= 0.0 and process.prediction_type == "epsilon":
        raise DarkroomError(
            "The model predicts epsilon with zero terminal SNR: the first DDIM step would divide by zero.",
            advice="Set the prediction type to v-prediction, or turn zero terminal SNR off.",
        )
    if num_steps > len(levels):
        raise DarkroomError(
            f"{num_steps:,} denoising steps are set, but the model has only {len(levels):,} timesteps.",
            advice=f"Set the denoising steps to {len(levels):,} or fewer.",
        )
    last = 1.0 if scheduler_config.get("set_alpha_to_one", True) else levels[0]
    stride = len(levels) // num_steps
    steps = []
    for timestep in _timesteps(scheduler_config, num_timesteps=len(levels), num_steps=num_steps):
        level_next = levels[timestep - stride] if timestep >= stride else last
        steps.append(DdimStep(timestep, levels[timestep], level_next, process.prediction_type, eta))
    return tuple(steps)


def _timesteps(config: Mapping[str, Any], *, num_timesteps: int, num_steps: int) -> list[int]:
    """Return the timesteps, the noisiest first (Lin et al. 2023, table 2)."""
    is_zero_snr = bool(config.get("rescale_betas_zero_snr"))
    match "trailing" if is_zero_snr else config.get("timestep_spacing", "leading"):
        case "leading":
            stride, offset = num_timesteps // num_steps, int(config.get("steps_offset", 0))
            # With as many steps as timesteps an offset would point past the last of them.
            return [min(i * stride + offset, num_timesteps - 1) for i in reversed(range(num_steps))]
        case "trailing":
            return [round(num_timesteps - i * num_timesteps / num_steps) - 1 for i in range(num_steps)]
        case "linspace":
            last = num_timesteps - 1
            return [round(i * last / max(num_steps - 1, 1)) for i in reversed(range(num_steps))]
        case other:
            raise DarkroomError(
                f"timestep_spacing {other!r} in the model's scheduler config is not supported.",
                advice="Set timestep_spacing in scheduler_config.json to leading, trailing or linspace.",
            )
