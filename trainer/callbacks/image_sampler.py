"""Sampling images with the current model: encode, denoise, decode, each with only its part on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from PIL import Image

from modules.config.sections.evaluation import SamplePrompt
from modules.data.buckets import LatentFactor, Size
from modules.data.conditioning import Conditioning, SizeConditioning
from modules.data.depth import latent_depth, load_sample_depth
from modules.data.inputs import REFERENCES, inputs_by_name
from modules.data.references import ReferenceFit, ReferenceSizes
from modules.data.tiles import VAE_TILES, Tiling
from modules.families.protocol import FamilyThatSees, ModelFamily
from modules.memory.placement import Placement
from modules.sampling.denoising_loop import (
    Predict,
    guide,
    guide_projected,
    initial_noise,
    run_denoising_loop,
    scheduler_for,
)
from modules.sampling.prediction import (
    InpaintingImages,
    blank_images,
    read_inpainting_images,
    read_reference_image,
    with_guidance,
)
from modules.system.devices import CPU, Device, move
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.paths import from_root
from trainer import phases
from trainer.step.precision import Precision


@dataclass(frozen=True, eq=False)
class SampledModel:
    """The model that samples are generated with, if it differs from the model in training.

    In the context of `active()`, within the phase of denoising, the denoiser has the weights of samples. `family` has
    their noise process and scheduler config.
    """

    family: ModelFamily
    active: Callable[[], AbstractContextManager[None]]


_MAX_ENCODED = 256  # prompts; one takes about 4 MB of FLUX.1's


class EncodedPrompts:
    """The conditioning of prompts by text encoders that a run does not change, on the CPU; the oldest are dropped."""

    def __init__(self) -> None:
        self._conditionings: dict[tuple[object, ...], Conditioning] = {}

    def of(self, prompt: SamplePrompt) -> Conditioning | None:
        """Return the conditioning of a prompt; None if it is not kept."""
        return self._conditionings.get(_encoded_of(prompt))

    def keep(self, prompt: SamplePrompt, conditioning: Conditioning) -> None:
        """Keep the conditioning of a prompt."""
        if len(self._conditionings) >= _MAX_ENCODED:
            self._conditionings.pop(next(iter(self._conditionings)))
        self._conditionings[_encoded_of(prompt)] = conditioning.to(CPU)


def _by_size(_width_px: int, _height_px: int) -> Tiling:
    return VAE_TILES


def _encoded_of(prompt: SamplePrompt) -> tuple[object, ...]:
    """Return all of a prompt that its conditioning depends on."""
    text = prompt.prompt, prompt.negative_prompt, prompt.guidance, prompt.width_px, prompt.height_px
    files = [from_root(file) for file in prompt.reference_images]
    return *text, *((file, file.stat().st_mtime_ns if file.is_file() else 0) for file in files)


@dataclass(frozen=True, eq=False)
class ImageSampler:
    """Samples one image per prompt. It draws only from its own generators, and does not change the model.

    `sampled` is the model as samples see it; None if it is the one in training. `encoded` keeps the conditioning of
    prompts; None where the text encoders change. `tiles_of(width_px, height_px)` returns the tiles in which the VAE
    decodes an image, when it is on the device. `fit` is how reference images are brought to their size; by default like
    the sample.
    """

    family: ModelFamily
    placement: Placement
    device: Device
    precision: Precision
    sampled: SampledModel | None = None
    encoded: EncodedPrompts | None = None
    tiles_of: Callable[[int, int], Tiling] = _by_size
    fit: ReferenceFit | None = None

    @torch.no_grad()
    def conditionings(self, prompts: Sequence[SamplePrompt]) -> list[Conditioning]:
        """Return the conditioning of each prompt, on the training device. Those that are kept need no encoder."""
        known = [self.encoded.of(p) if self.encoded is not None else None for p in prompts]
        kept = [None if c is None else c.to(self.device) for c in known]
        if None not in kept:
            return [c for c in kept if c is not None]
        with self.placement.phase(phases.SAMPLE_ENCODE), self.precision.autocast():
            conditionings = [self._encode(p) if c is None else c for p, c in zip(prompts, kept, strict=True)]
        if self.encoded is not None:
            for prompt, conditioning in zip(prompts, conditionings, strict=True):
                self.encoded.keep(prompt, conditioning)
        return conditionings

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[SamplePrompt], *, on_step: Callable[[], None], most_steps: int | None = None
    ) -> list[Image.Image]:
        """Return an image per prompt. `on_step` is called before each denoising step and may raise to stop sampling.

        With the same seed, sampler and weights the images are the same as from diffusers' pipelines. `most_steps` ends
        each denoising loop early, for a dry run.
        """
        starts = [initial_noise(self._shape(p), seed=p.seed, device=self.device) for p in prompts]
        inputs = self._inputs(prompts, [generator for _, generator in starts])
        conditionings = self.conditionings(prompts)
        active = nullcontext() if self.sampled is None else self.sampled.active()
        with self.placement.phase(phases.SAMPLE_DENOISE), active, self.precision.of_steps():
            latents = [
                self._denoise(*of_prompt, on_step, most_steps)
                for of_prompt in zip(prompts, conditionings, starts, inputs, strict=True)
            ]
        return self._decode(prompts, latents, conditionings)

    @torch.no_grad()
    def guess(
        self, prompts: Sequence[SamplePrompt], timestep: int, *, on_step: Callable[[], None]
    ) -> list[Image.Image]:
        """Return the clean image that the model predicts from noise alone at a timestep, without guidance, per prompt.

        It is the mean of all images that the model expects, in one step. `on_step` is called before each prompt.
        """
        process = self.family.process
        starts = [initial_noise(self._shape(p), seed=p.seed, device=self.device) for p in prompts]
        inputs = self._inputs(prompts, [generator for _, generator in starts])
        conditionings = self.conditionings([p.model_copy(update={"guidance": 1.0}) for p in prompts])
        timesteps_1 = move(torch.tensor([timestep]), self.device)
        latents = []
        with self.placement.phase(phases.SAMPLE_DENOISE), self.precision.of_steps():
            for (noise_1CHW, _), conditioning, further in zip(starts, conditionings, inputs, strict=True):
                on_step()
                noisy_1CHW = process.add_noise(torch.zeros_like(noise_1CHW), noise_1CHW, timesteps_1)
                output_1CHW = self.family.predict(noisy_1CHW, timesteps_1, conditioning, further)
                latents.append(process.to_x0(noisy_1CHW, output_1CHW, timesteps_1))
        return self._decode(prompts, latents, conditionings)

    def _decode(
        self, prompts: Sequence[SamplePrompt], latents: Sequence[torch.Tensor], conditionings: Sequence[Conditioning]
    ) -> list[Image.Image]:
        with self.placement.phase(phases.SAMPLE_DECODE):
            return [
                to_image(self.family.decode(z, self.tiles_of(p.width_px, p.height_px), text))
                for p, z, text in zip(prompts, latents, conditionings, strict=True)
            ]

    def _encode(self, prompt: SamplePrompt) -> Conditioning:
        is_doubled = self.family.spec.doubles_batch(prompt.guidance)
        seen = self.family.spec.seen_with_captions
        if seen is not None and prompt.reference_images:
            texts = [prompt.negative_prompt, prompt.prompt] if is_doubled else [prompt.prompt]
            images = [
                image_13PP[0] for image_13PP in self._images(prompt, ReferenceFit(seen.sizes, follows_image=False))
            ]
            encoded = cast(FamilyThatSees, self.family).encode_with_images(texts, images)
        elif is_doubled:
            encoded = self.family.encode_guided(prompt.negative_prompt, prompt.prompt)
        else:
            encoded = self.family.encode_prompts([prompt.prompt])
        size_conditioning = SizeConditioning.whole(Size(prompt.width_px, prompt.height_px))
        sized = self.family.with_size_conditioning(encoded, [size_conditioning] * len(encoded))
        return with_guidance(self.family, sized, prompt.guidance)

    def _shape(self, prompt: SamplePrompt) -> tuple[int, ...]:
        """Return the shape of the latents of a sample."""
        spec = self.family.spec
        return 1, *spec.latents.shape(prompt.width_px, prompt.height_px)

    def _inputs(
        self, prompts: Sequence[SamplePrompt], generators: Sequence[torch.Generator]
    ) -> list[dict[str, torch.Tensor]]:
        """Return the further inputs of a model variant for each prompt; none for other models.

        A sample of an inpainting model without images to inpaint is inpainted everywhere.
        """
        names, factor = self.family.spec.inputs.get(self.family.variant, ()), self.family.spec.latents.factor
        if "depth" in names:
            return [{"depth": move(_depth_map(p, factor), self.device)} for p in prompts]
        if any(i.reference for i in inputs_by_name(names)):
            with self.placement.phase(phases.SAMPLE_IMAGES):
                return [self._references(p) for p in prompts]
        if "masked_image" not in names or not self.family.spec.names_of("vae"):
            return [{} for _ in prompts]
        inputs: list[dict[str, torch.Tensor]] = []
        with self.placement.phase(phases.SAMPLE_IMAGES):
            for prompt, generator in zip(prompts, generators, strict=True):
                images = _inpainting_images(prompt)
                latents_1CHW = self.family.encode_images(move(images.image_13PP, self.device), generator)
                masks = {
                    i.name: images.latent_mask(factor) if i.delivery == "mask" else images.mask_by_latents(factor)
                    for i in inputs_by_name(names)
                    if i.is_mask
                }
                on_device = {name: move(mask, self.device) for name, mask in masks.items()}
                inputs.append({**on_device, "masked_image": latents_1CHW})
        return inputs

    def _references(self, prompt: SamplePrompt) -> dict[str, torch.Tensor]:
        """Return the reference images of a sample as latents; nothing for a sample without any."""
        spec = self.family.spec
        images = self._images(prompt, self.fit or ReferenceFit(spec.references or ReferenceSizes(spec.size_step_px)))
        return {
            name: self.family.encode_images(move(image_13PP, self.device))
            for name, image_13PP in zip(REFERENCES, images, strict=False)
        }

    def _images(self, prompt: SamplePrompt, fit: ReferenceFit) -> list[torch.Tensor]:
        """Return the reference images (1, 3, P, P) that a sample's model reads, at the sizes that `fit` gives them."""
        size, most = Size(prompt.width_px, prompt.height_px), len(self.family.spec.inputs[self.family.variant])
        try:
            return [read_reference_image(from_root(file), size, fit) for file in prompt.reference_images[:most]]
        except OSError as error:
            reason = plain_reason(error, names_file=True)
            raise DarkroomError(f"A reference image cannot be read: {reason}.", advice="Choose another one.") from error

    def _denoise(
        self,
        prompt: SamplePrompt,
        conditioning: Conditioning,
        start: tuple[torch.Tensor, torch.Generator],
        inputs: Mapping[str, torch.Tensor],
        on_step: Callable[[], None],
        most_steps: int | None,
    ) -> torch.Tensor:
        noise_1CHW, generator = start
        scheduled = self.family if self.sampled is None else self.sampled.family

        def predict(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
            size = noisy_BCHW.shape[0]
            timesteps_B = timestep.to(noisy_BCHW.device).expand(size)
            expanded = {name: value.expand(size, -1, -1, -1) for name, value in inputs.items()}
            return self.family.predict(noisy_BCHW, timesteps_B, conditioning, expanded)

        return run_denoising_loop(
            self._with_guidance(predict, prompt) if self.family.spec.doubles_batch(prompt.guidance) else predict,
            scheduler_for(scheduled, prompt.sampler, Size(prompt.width_px, prompt.height_px)),
            noise_1CHW,
            num_steps=prompt.steps,
            generator=generator,
            on_step=on_step,
            most_steps=most_steps,
        )

    def _with_guidance(self, predict: Predict, prompt: SamplePrompt) -> Predict:
        spec = self.family.spec
        if spec.projected_guidance is not None:
            return guide_projected(predict, prompt.guidance, spec.projected_guidance(prompt.prompt))
        return guide(predict, prompt.guidance, norm_over=spec.guided_norm)


def _inpainting_images(prompt: SamplePrompt) -> InpaintingImages:
    """Return the image and the mask that a sample inpaints. Raises DarkroomError for a file that cannot be read."""
    size = Size(prompt.width_px, prompt.height_px)
    if not prompt.inpainting:
        return blank_images(size)
    try:
        return read_inpainting_images(from_root(prompt.base_image), from_root(prompt.mask_image), size)
    except OSError as error:
        raise DarkroomError(
            f"An image to inpaint cannot be read: {plain_reason(error, names_file=True)}.", advice="Choose another one."
        ) from error


def _depth_map(prompt: SamplePrompt, latent_factor: LatentFactor) -> torch.Tensor:
    """Return the depth map of a sample (1, 1, H, W). Raises DarkroomError for a file that cannot be read."""
    size = Size(prompt.width_px, prompt.height_px)
    if not prompt.depth_image.strip():
        return torch.zeros(1, 1, size.height_px // latent_factor, size.width_px // latent_factor)
    try:
        return latent_depth(load_sample_depth(from_root(prompt.depth_image), size)[None], latent_factor)
    except OSError as error:
        raise DarkroomError(
            f"A depth map cannot be read: {plain_reason(error, names_file=True)}.", advice="Choose another one."
        ) from error


def to_image(images_13PP: torch.Tensor) -> Image.Image:
    """Return a tensor with values in [-1, 1] as an image, rounded like diffusers."""
    unit_PP3 = (move(images_13PP[0], CPU) / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).float().numpy()
    return Image.fromarray((unit_PP3 * 255).round().astype(np.uint8))
