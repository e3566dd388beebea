"""The forward process of flow matching and its inverses; the protocol is in `process.py`.

Lipman et al. 2023, "Flow Matching for Generative Modeling"; Liu et al. 2023, "Flow Straight and Fast". The path from a
clean sample to noise is the straight line `x_t = (1 - sigma) x_0 + sigma eps`; the model predicts its velocity
`v = dx / dsigma = eps - x_0`. sigma is continuous in [0, 1]; a timestep is `t = 1000 sigma`, float32.

Shapes: B batch, any further dimensions of the latents. All computation is in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from modules.diffusion.flow_convention import FlowConvention, flow_matching
from modules.diffusion.latents import for_samples
from modules.diffusion.process_spec import PredictionType, ProcessSpec


@dataclass(frozen=True, eq=False)
class FlowProcess:
    """Rectified flow with the convention of a model; implements `NoiseProcess`.

    `ModelFamily.predict` returns the velocity `eps - x_0`: a family passes its model `time_input(timesteps)` and
    returns `velocity(output)`. So nothing else in the program knows the signs of a model.
    """

    convention: FlowConvention = field(default_factory=FlowConvention)
    num_timesteps: int = 1000

    @property
    def spec(self) -> ProcessSpec:
        """The record of the process, with the shift of the loaded model."""
        return flow_matching(self.convention)

    @property
    def prediction_type(self) -> PredictionType:
        """The prediction type: "flow"."""
        return "flow"

    def sigma(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the sigma of timesteps, float32."""
        return timesteps_B.float() / self.num_timesteps

    def timesteps(self, sigma_B: torch.Tensor) -> torch.Tensor:
        """Return the timesteps of a sigma, float32."""
        return sigma_B.float() * self.num_timesteps

    def time_input(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the model's time input at these timesteps, float32."""
        match self.convention.time_input:
            case "sigma":
                return self.sigma(timesteps_B)
            case "1 - sigma":
                return 1.0 - self.sigma(timesteps_B)
            case "1000 sigma":
                return timesteps_B.float()

    def velocity(self, output_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the velocity `eps - x_0` that a model's output means."""
        return output_BCHW if self.convention.target_sign == self.convention.output_sign else -output_BCHW

    def add_noise(self, clean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return `x_t = (1 - sigma) x_0 + sigma eps`, float32."""
        sigma_B111 = for_samples(self.sigma(timesteps_B), clean_BCHW)
        return (1.0 - sigma_B111) * clean_BCHW.float() + sigma_B111 * noise_BCHW.float()

    def target(self, clean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the training target, the velocity `eps - x_0`, float32; it is the same at all timesteps."""
        return noise_BCHW.float() - clean_BCHW.float()

    def to_x0(self, noisy_BCHW: torch.Tensor, output_BCHW: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the clean latents `x_t - sigma v` that a velocity predicts, float32."""
        return noisy_BCHW.float() - for_samples(self.sigma(timesteps_B), noisy_BCHW) * output_BCHW.float()

    def snr(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the signal-to-noise ratio `((1 - sigma) / sigma)^2`, float32 of shape (B,); infinite at sigma 0."""
        sigma_B = self.sigma(timesteps_B)
        return ((1.0 - sigma_B) / sigma_B).square()

    def noise_errors(self, errors_B: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the squared errors of the noise `x_t + (1 - sigma) v`: the velocity's times `(1 - sigma)^2`.

        With this factor Diffusion-DPO is Flow-DPO with `beta_t = beta (1 - t)^2` (Liu et al. 2025, "Improving Video
        Generation with Human Feedback", arXiv 2501.13918, section 4.2).
        """
        return errors_B * (1.0 - self.sigma(timesteps_B)).square()


def flow_process_of(scheduler: Mapping[str, Any], convention: FlowConvention) -> FlowProcess:
    """Return the process of a checkpoint from its diffusers scheduler config and the convention of its family.

    Raises DarkroomError for a shift that cannot be used.
    """
    return FlowProcess(convention.with_scheduler(scheduler), int(scheduler.get("num_train_timesteps", 1000)))
