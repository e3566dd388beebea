"""The guided prediction of a model for prompts, when sampling images and when training on them; images to inpaint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from modules.data.buckets import LatentFactor, ResizeCrop, Size
from modules.data.cache.inputs import by_latents
from modules.data.conditioning import Conditioning, SizeConditioning
from modules.data.decode import flatten
from modules.data.images import open_image, upright
from modules.data.references import ReferenceFit
from modules.data.transforms.masks import as_mask
from modules.families.protocol import ModelFamily
from modules.sampling.denoising_loop import Predict, guide


def with_guidance(family: ModelFamily, conditioning: Conditioning, guidance: float) -> Conditioning:
    """Return the conditioning of samples with their guidance scale, where the model reads it; else as it is.

    The conditioning of such a family has a field `guidance`. In training the family uses the scale of its settings.
    """
    if family.spec.guidance != "embedded":
        return conditioning
    guided: Conditioning = replace(cast(Any, conditioning), guidance=guidance)
    return guided


def guided_prediction(
    family: ModelFamily,
    conditioning: Conditioning,
    unconditional: Conditioning | None,
    *,
    size: Size,
    guidance: float,
) -> Predict:
    """Return the prediction for B prompts: one call of the family per step, the batch doubled for guidance.

    It takes noisy latents (B, C, H, W) and a timestep of shape (), and returns the model's output, float32. At a
    guidance of 1 or less there is none. `unconditional`, needed only where guidance doubles the batch, is the
    conditioning of the empty prompt, once or B times; a family with a part for guidance has one `without_prompt` that
    this part predicts. Both receive the size conditioning of uncropped images of `size`.
    Raises ValueError if it is missing.
    """
    is_guided = family.spec.doubles_batch(guidance)
    if is_guided:
        if unconditional is None:
            raise ValueError("Guidance needs the conditioning of the empty prompt.")
        repeated = unconditional.select([0] * len(conditioning)) if len(unconditional) == 1 else unconditional
        if family.spec.names_of("guidance"):
            repeated = cast(Any, family).without_prompt(repeated)
        conditioning = family.join([repeated, conditioning], unconditional.select([0]))
    sized = family.with_size_conditioning(conditioning, [SizeConditioning.whole(size)] * len(conditioning))
    whole = with_guidance(family, sized, guidance)

    def predict(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        output_BCHW = family.predict(noisy_BCHW, timestep.expand(noisy_BCHW.shape[0]), whole)
        return output_BCHW.float()

    return guide(predict, guidance, norm_over=family.spec.guided_norm) if is_guided else predict


# The images of a sample that inpaints, prepared as diffusers' inpainting pipelines prepare them.
#
# `StableDiffusionInpaintPipeline` and `StableDiffusionXLInpaintPipeline`, strength 1: the sample starts from noise
# alone.


@dataclass(frozen=True, eq=False)
class InpaintingImages:
    """The input of a sample that inpaints: the mask (1, 1, P, P), 1 if it inpaints, and the image in [-1, 1]
    (1, 3, P, P), which is mid-gray there.
    """

    mask_11PP: torch.Tensor
    image_13PP: torch.Tensor

    def mask_by_latents(self, factor: LatentFactor) -> torch.Tensor:
        """Return the pixels of the mask by latents, (1, F * F, H, W) for a factor F."""
        return by_latents(self.mask_11PP[:, 0], factor)

    def latent_mask(self, factor: LatentFactor) -> torch.Tensor:
        """Return the mask (1, 1, H, W) at the size of latents that are smaller by a factor."""
        height, width = (side // factor for side in self.mask_11PP.shape[-2:])
        return interpolate(self.mask_11PP, size=(height, width))


def blank_images(size: Size) -> InpaintingImages:
    """Return the images of a sample that is inpainted everywhere: from the prompt alone."""
    return InpaintingImages(
        torch.ones(1, 1, size.height_px, size.width_px), torch.zeros(1, 3, size.height_px, size.width_px)
    )


def read_sample_image(file: Path, size: Size) -> torch.Tensor:
    """Return an image of a sample, resized to the sample's size, in [-1, 1], float32 (1, 3, P, P).

    Raises OSError for a file that is missing or cannot be decoded.
    """
    with open_image(file) as raw:
        image = flatten(upright(raw)).resize((size.width_px, size.height_px), Image.Resampling.LANCZOS)
    return _as_tensor(image)


def read_reference_image(file: Path, size: Size, fit: ReferenceFit) -> torch.Tensor:
    """Return a reference image of a sample of a size, at the size that `fit` gives it, in [-1, 1], (1, 3, P, P).

    Float32. Raises OSError for a file that is missing or cannot be decoded.
    """
    with open_image(file) as raw:
        image = flatten(upright(raw))
    file_size = Size(*image.size)
    way = ResizeCrop(size, size, 0, 0) if fit.is_aligned(file_size, size) else fit.way_of(file_size, size)
    image = image.resize(way.scaled.sides_px, Image.Resampling.LANCZOS)
    left, top = way.crop_left_px, way.crop_top_px
    return _as_tensor(image.crop((left, top, left + way.bucket.width_px, top + way.bucket.height_px)))


def _as_tensor(image: Image.Image) -> torch.Tensor:
    unit_PP3 = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0)
    return 2.0 * unit_PP3.permute(2, 0, 1)[None] - 1.0


def read_inpainting_images(base_image: Path, mask_image: Path, size: Size) -> InpaintingImages:
    """Return the images of a sample from files of any size; they are resized to the sample's.

    The mask is white where the sample is inpainted. Raises OSError for a file that is missing or cannot be decoded.
    """
    image_13PP = read_sample_image(base_image, size)
    with open_image(mask_image) as raw:
        mask = as_mask(upright(raw)).resize((size.width_px, size.height_px), Image.Resampling.LANCZOS)
    gray_PP = torch.from_numpy(np.asarray(mask, dtype=np.float32) / 255.0)
    mask_11PP = (gray_PP >= 0.5).float()[None, None]
    return InpaintingImages(mask_11PP, image_13PP * (1.0 - mask_11PP))
