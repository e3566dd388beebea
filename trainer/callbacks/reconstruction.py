"""Reconstructions of a run's VAE: measured in validation, and shown next to the images as samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from PIL import Image

from modules.config.sections.evaluation import Sampling
from modules.data.batch import Batch
from modules.families.protocol import ModelFamily
from modules.memory.placement import Placement
from modules.objectives.denoise import sample_losses, weighted_by_area
from modules.objectives.methods.reconstruction import Reconstruction
from modules.objectives.perceptual import PerceptualDistance
from modules.objectives.reconstruction import peak_signal_to_noise, pixel_errors, structural_similarity
from trainer import phases
from trainer.callbacks.image_sampler import to_image
from trainer.callbacks.sample_files import SampleFiles
from trainer.callbacks.sampling import SampleCallback
from trainer.commands import CommandDesk
from trainer.data.loader import Loader
from trainer.events import Event
from trainer.step.callback import DryRunCheck, DryRunState
from trainer.step.evaluation import Evaluation
from trainer.step.meeting import Meeting

NUM_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class ReconstructionErrors:
    """One image's losses, plain and weighted like the training loss, and how similar its reconstruction is."""

    plain: float
    weighted: float
    metrics: dict[str, float]


@dataclass(frozen=True, eq=False)
class ReconstructionMeasure:
    """Measures reconstructions of the means of the latents, as every program decodes them: without autocast."""

    family: ModelFamily
    settings: Reconstruction
    perceptual: PerceptualDistance | None = None

    def measure(self, batch: Batch) -> list[ReconstructionErrors]:
        """Return the losses and metrics of each image of a batch."""
        images_B3PP, settings = batch.pixels_B3PP, self.settings
        assert images_B3PP is not None, "the loader delivers pixels to a run of the VAE"
        decoded_B3PP = reconstruct(self.family, images_B3PP)
        errors_B3PP = pixel_errors(
            decoded_B3PP, images_B3PP, mse_strength=settings.mse_strength, mae_strength=settings.mae_strength
        )
        plain_B = sample_losses(errors_B3PP)
        weighted_B = sample_losses(weighted_by_area(errors_B3PP, batch.area_weights_B1HW))
        metrics = {
            "psnr": peak_signal_to_noise(decoded_B3PP, images_B3PP),
            "ssim": structural_similarity(decoded_B3PP, images_B3PP),
        }
        if self.perceptual is not None:
            metrics["lpips"] = self.perceptual(decoded_B3PP, images_B3PP)
            plain_B = plain_B + settings.perceptual_strength * metrics["lpips"]
            by_area_B = self.perceptual(decoded_B3PP, images_B3PP, batch.area_weights_B1HW)
            weighted_B = weighted_B + settings.perceptual_strength * by_area_B
        losses = zip(plain_B.tolist(), (weighted_B * batch.loss_weights_B).tolist(), strict=True)
        values = zip(*(values_B.tolist() for values_B in metrics.values()), strict=True)
        return [
            ReconstructionErrors(plain, weighted, dict(zip(metrics, of_image, strict=True)))
            for (plain, weighted), of_image in zip(losses, values, strict=True)
        ]


def reconstruct(family: ModelFamily, images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return images encoded and decoded, each alone, so that the result does not depend on the batch."""
    return torch.cat([family.decode(family.encode_images(image[None])) for image in images_B3PP])


class ReconstructionSamples(SampleCallback):
    """Shows the same few images next to their reconstructions, when samples are due or requested."""

    task = "reconstructions"

    def __init__(
        self,
        settings: Sampling,
        *,
        loader: Loader,
        family: ModelFamily,
        placement: Placement,
        evaluation: Evaluation,
        files: SampleFiles,
        desk: CommandDesk,
        emit: Callable[[Event], None],
        meeting: Meeting | None = None,
    ) -> None:
        """The first images of `loader` are shown, each at its first resolution."""
        super().__init__(settings, evaluation=evaluation, files=files, desk=desk, emit=emit, meeting=meeting)
        self._loader = loader
        self._versions = list(islice((v for v in loader.versions.first_versions() if v.resolution == 0), NUM_SAMPLES))
        self._family = family
        self._placement = placement

    def _named_images(self) -> list[tuple[int, str]]:
        return [(index, self._name(index)) for index in range(len(self._versions))]

    def _sample_share(self, given: tuple[int, int]) -> list[Image.Image]:
        rank, evaluation, images = self._meeting.rank, self._evaluations()[given[1]], []
        for index in range(rank.index, len(self._versions), rank.world_size):
            self._meeting.check()
            images.append(self._pair(index, evaluation))
        return images

    def dry_run_checks(self, state: DryRunState) -> list[DryRunCheck]:
        """Return the check of the largest image, if the settings make samples without a request."""
        settings = self._settings
        if not self._versions or (settings.every.is_never and not settings.at_start and not settings.at_end):
            return []
        areas = [v.recipe.bucket.width_px * v.recipe.bucket.height_px for v in self._versions]
        check = partial(self._try_out, areas.index(max(areas)), state.counters.step)
        return [DryRunCheck("sampling", "Use a smaller resolution, or switch samples off.", check)]

    def _try_out(self, index: int, step: int) -> None:
        self._files.try_out(self._pair(index, self._evaluation), step, index, self._name(index))

    def _pair(self, index: int, evaluation: Evaluation) -> Image.Image:
        """Return an image with its reconstruction to the right."""
        source = self._loader.pixels
        assert source is not None, "the loader delivers pixels to a run of the VAE"
        images_13PP = source.deliver([self._versions[index]], [source.prepare(self._versions[index])])
        with evaluation.active(), self._placement.phase(phases.SAMPLE_DECODE):
            both_13PP = torch.cat([images_13PP, reconstruct(self._family, images_13PP)], dim=3)
        return to_image(both_13PP)

    def _name(self, index: int) -> str:
        return self._loader.dataset.examples[self._versions[index].example].image.path.stem
