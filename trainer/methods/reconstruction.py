"""Reconstruction: a VAE encodes images and decodes them again; the errors of the pixels are the loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.diffusion.noise import generator_for
from modules.objectives.denoise import sample_losses, weighted_by_area
from modules.objectives.methods.reconstruction import Reconstruction
from modules.objectives.perceptual import PerceptualDistance
from modules.objectives.reconstruction import kl_divergences, peak_signal_to_noise, pixel_errors
from modules.system.devices import move
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod


@dataclass(frozen=True, slots=True)
class ReconstructionMethod:
    """The method of the VAE. The decoder alone learns from the means of the latents, the whole VAE from samples."""

    settings: Reconstruction
    perceptual: PerceptualDistance | None = None

    def prepare(self, context: StepContext) -> None:
        """Nothing to prepare."""

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[Batch]:
        """Yield the loader's batches unchanged."""
        yield from loader

    def loss(self, batch: Batch, context: StepContext) -> StepLoss:
        """Return the weighted mean of the samples' losses: the errors of their pixels, LPIPS and the KL divergence."""
        settings, images_B3PP = self.settings, batch.pixels_B3PP
        assert images_B3PP is not None, "the loader delivers pixels to a method that trains on them"
        with torch.no_grad() if settings.decoder_only else nullcontext():
            posterior = context.family.posterior(images_B3PP)
        noise_BCHW = None if settings.decoder_only else _noise(batch, posterior.means_BCHW, context)
        decoded_B3PP = context.family.decode(posterior.latents(noise_BCHW))
        errors_B3PP = pixel_errors(
            decoded_B3PP, images_B3PP, mse_strength=settings.mse_strength, mae_strength=settings.mae_strength
        )
        losses_B = sample_losses(weighted_by_area(errors_B3PP, batch.area_weights_B1HW))
        metrics = {"psnr": peak_signal_to_noise(decoded_B3PP.detach(), images_B3PP).mean()}
        if self.perceptual is not None:
            distances_B = self.perceptual(decoded_B3PP, images_B3PP, batch.area_weights_B1HW)
            losses_B = losses_B + settings.perceptual_strength * distances_B
            metrics["lpips"] = distances_B.detach().mean()
        if not settings.decoder_only and settings.kl_strength:
            divergences_B = kl_divergences(posterior.means_BCHW, posterior.log_variances_BCHW)
            losses_B = losses_B + settings.kl_strength * divergences_B
        return StepLoss(
            loss=(losses_B * batch.loss_weights_B).mean(),
            num_samples=batch.num_counted,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            metrics=metrics,
        )

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return the only branch: the method itself."""
        return {"reconstruction": self}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return an empty state: all randomness follows from the counters."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


def _noise(batch: Batch, latents_BCHW: torch.Tensor, context: StepContext) -> torch.Tensor:
    """Return the noise of the latents: for each sample a function of the seed, the step and its place in the group."""
    places = range(batch.group_start, batch.group_start + batch.num_samples)
    generators = (generator_for(context.run_seed, "posterior", batch.step, place) for place in places)
    noise = [torch.randn(latents_BCHW.shape[1:], generator=generator) for generator in generators]
    return move(torch.stack(noise), context.device)


def build(settings: Reconstruction, training: Training, perceptual: PerceptualDistance | None) -> ReconstructionMethod:
    """Return the method, with the perceptual distance of its loss, if it has one."""
    return ReconstructionMethod(settings, perceptual)
