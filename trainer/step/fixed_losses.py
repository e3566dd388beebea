"""The denoising losses of images at fixed timesteps with fixed noise, for validation and for reports on images."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from modules.data.batch import Batch
from modules.diffusion.noise import fixed_timesteps, generator_for
from modules.families.protocol import ModelFamily
from modules.objectives.denoise import prediction_errors, sample_losses, weighted_by_area
from modules.system.devices import Device, move
from trainer.step.precision import Precision


@dataclass(frozen=True, slots=True)
class LossesAtTimestep:
    """The losses of the images of a batch at a timestep: plain, and weighted like the training loss."""

    timestep: int
    plain: list[float]
    weighted: list[float]


@dataclass(frozen=True, eq=False)
class FixedLosses:
    """Measures batches. The same weights give the same losses, bit for bit.

    `weights_at(timesteps)` returns the weights of the training loss, or None if all are equal. `check` is called before
    each timestep, and may raise to stop.
    """

    family: ModelFamily
    precision: Precision
    device: Device
    run_seed: int
    num_timesteps: int
    weights_at: Callable[[torch.Tensor], torch.Tensor | None]
    check: Callable[[], None]

    @property
    def timesteps(self) -> Sequence[int]:
        """The timesteps, spread evenly over the model's noise process."""
        return fixed_timesteps(self.num_timesteps, num_timesteps=self.family.process.num_timesteps)

    def of(
        self, batch: Batch, timesteps: Sequence[int] | None = None, *, num_draws: int = 1
    ) -> Iterator[LossesAtTimestep]:
        """Yield the losses of a batch at each timestep, or only at the given ones, once for each draw of noise."""
        with self.precision.of_steps():
            conditioning = batch.conditioning_for(self.family)
        places = self.timesteps if timesteps is None else timesteps
        for timestep, draw in itertools.product(places, range(num_draws)):
            self.check()
            timesteps_B = move(torch.full((batch.num_samples,), timestep), self.device)
            with self.precision.of_steps():
                errors_BCHW = prediction_errors(
                    self.family,
                    batch.latents_BCHW,
                    conditioning,
                    timesteps_B=timesteps_B,
                    noise_BCHW=self._noise(batch, timestep, draw),
                    inputs=batch.inputs,
                )
            plain_B = sample_losses(errors_BCHW)
            by_area_BCHW = weighted_by_area(errors_BCHW, batch.area_weights_B1HW)
            weighted_B = sample_losses(by_area_BCHW, self.weights_at(timesteps_B), batch.loss_weights_B)
            yield LossesAtTimestep(timestep, plain_B.tolist(), weighted_B.tolist())

    def _noise(self, batch: Batch, timestep: int, draw: int) -> torch.Tensor:
        """Return the noise of each image at a timestep: the same in every measurement of the run."""
        shape = batch.latents_BCHW.shape[1:]
        further = (draw,) if draw else ()
        noise = [
            torch.randn(shape, generator=generator_for(self.run_seed, "validation", s.example, timestep, *further))
            for s in batch.sample_indices
        ]
        return move(torch.stack(noise), self.device)
