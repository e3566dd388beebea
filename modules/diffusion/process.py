"""The forward process of DDPM and its inverses: adding noise, training target, predicted x_0, signal-to-noise ratio.

Shapes: B batch, C channels, H W height and width of the latents, T number of timesteps. All computation is
in float32, whatever the dtype of the inputs: in bfloat16 the noisy latents alone would have an error
of 0.4 %, comparable to what the model learns late in training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from modules.diffusion.latents import for_samples
from modules.diffusion.process_spec import DDPM, PredictionType, ProcessSpec


class NoiseProcess(Protocol):
    """The forward process as training uses it; `flow.py` has flow matching, the class below DDPM."""

    @property
    def spec(self) -> ProcessSpec: ...

    @property
    def num_timesteps(self) -> int: ...

    @property
    def prediction_type(self) -> PredictionType: ...

    def add_noise(
        self, clean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor, timesteps_B: torch.Tensor
    ) -> torch.Tensor: ...

    def target(self, clean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor: ...

    def to_x0(self, noisy_BCHW: torch.Tensor, output_BCHW: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor: ...

    def snr(self, timesteps_B: torch.Tensor) -> torch.Tensor: ...

    def noise_errors(self, errors_B: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The constants of all T timesteps on one device: abar_t, sqrt(abar_t) and sqrt(1 - abar_t)."""

    abar_T: torch.Tensor
    signal_T: torch.Tensor
    sigma_T: torch.Tensor

    @classmethod
    def of(cls, abar_T: torch.Tensor) -> _Table:
        """Return the table of cumulative alphas, on their device."""
        return cls(abar_T, abar_T.sqrt(), (1.0 - abar_T).sqrt())


@dataclass(frozen=True, eq=False)
class DDPMProcess:
    """Discrete DDPM with an epsilon or v-prediction model (Ho et al. 2020; Salimans and Ho 2022, app. D)."""

    alphas_cumprod_T: torch.Tensor
    prediction_type: PredictionType = "epsilon"
    # A copy at each call would make the host wait for a GPU; a process is used on one or two devices.
    _tables: dict[torch.device, _Table] = field(default_factory=dict, init=False, repr=False)

    @property
    def spec(self) -> ProcessSpec:
        """The record of the process."""
        return DDPM

    @property
    def num_timesteps(self) -> int:
        """The number of timesteps the model was trained on; valid timesteps are 0 .. num_timesteps - 1."""
        return int(self.alphas_cumprod_T.shape[0])

    def add_noise(self, clean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return `x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps` in float32 (Ho et al. 2020, eq. 4)."""
        signal_B111, sigma_B111 = self._coefficients(timesteps_B, clean_BCHW)
        return signal_B111 * clean_BCHW.float() + sigma_B111 * noise_BCHW.float()

    def target(self, clean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the training target, float32: eps, or `v = sqrt(abar) eps - sqrt(1 - abar) x_0`."""
        if self.prediction_type == "epsilon":
            return noise_BCHW.float()
        signal_B111, sigma_B111 = self._coefficients(timesteps_B, clean_BCHW)
        return signal_B111 * noise_BCHW.float() - sigma_B111 * clean_BCHW.float()

    def to_x0(self, noisy_BCHW: torch.Tensor, output_BCHW: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the clean latents x_0 that a model output predicts, float32.

        Epsilon: `(x_t - sqrt(1 - abar) eps) / sqrt(abar)`, undefined where abar is 0 (zero terminal SNR).
        V-prediction: `sqrt(abar) x_t - sqrt(1 - abar) v`, finite everywhere.
        """
        signal_B111, sigma_B111 = self._coefficients(timesteps_B, noisy_BCHW)
        noisy_BCHW, output_BCHW = noisy_BCHW.float(), output_BCHW.float()
        if self.prediction_type == "epsilon":
            return (noisy_BCHW - sigma_B111 * output_BCHW) / signal_B111
        return signal_B111 * noisy_BCHW - sigma_B111 * output_BCHW

    def snr(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the signal-to-noise ratio `abar_t / (1 - abar_t)`, float32 of shape (B,)."""
        abar_B = self._table(timesteps_B.device).abar_T[timesteps_B]
        return abar_B / (1.0 - abar_B)

    def noise_errors(self, errors_B: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the squared errors of the noise that model outputs imply, from the squared errors of the outputs.

        For v-prediction they are multiplied by abar_t, because `eps = sqrt(abar) v + sqrt(1 - abar) x_t` (Salimans and
        Ho 2022, appendix D). Where abar is 0 (zero terminal SNR), the error is 0.
        """
        if self.prediction_type == "epsilon":
            return errors_B
        snr_B = self.snr(timesteps_B)
        return errors_B * (snr_B / (1.0 + snr_B))  # abar

    def _coefficients(self, timesteps_B: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return sqrt(abar_t) and sqrt(1 - abar_t), each of shape (B, 1, 1, 1) for latents of images."""
        table = self._table(timesteps_B.device)
        return for_samples(table.signal_T[timesteps_B], like), for_samples(table.sigma_T[timesteps_B], like)

    def _table(self, device: torch.device) -> _Table:
        if device not in self._tables:
            self._tables[device] = _Table.of(self.alphas_cumprod_T.to(device))
        return self._tables[device]
