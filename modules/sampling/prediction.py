"""The guided prediction of a model for some prompts, the same while sampling images and while training on them."""

from __future__ import annotations

from typing import Protocol, cast

import torch

from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.data.size_conditioning import SizeConditioning
from modules.families.protocol import ModelFamily
from modules.sampling.denoising_loop import Predict, guided


class EmbedsGuidance(Protocol):
    """A family whose models read the guidance scale as an input (`FamilySpec.guidance` is "embedded").

    In training it uses the scale of its own settings.
    """

    def with_guidance(self, conditioning: Conditioning, guidance: float) -> Conditioning:
        """Return the conditioning with a guidance scale for each of its prompts."""
        ...


def with_guidance(family: ModelFamily, conditioning: Conditioning, guidance: float) -> Conditioning:
    """Return the conditioning of samples with their guidance scale, where the model reads it; else as it is."""
    if family.spec.guidance != "embedded":
        return conditioning
    return cast(EmbedsGuidance, family).with_guidance(conditioning, guidance)


def guided_prediction(
    family: ModelFamily,
    conditioning: Conditioning,
    unconditional: Conditioning | None,
    *,
    size: Size,
    guidance: float,
) -> Predict:
    """Return the prediction for B prompts: one call of the family per step, the batch doubled for guidance.

    It takes noisy latents (B, C, H, W) and a timestep of shape (), and returns the model's output, float32. A guidance
    of 1 or less is none. `unconditional`, needed only where guidance doubles the batch, is the conditioning of the
    empty prompt, once or B times. Both receive the size conditioning of uncropped images of `size`. Raises ValueError
    where it is missing.
    """
    is_guided = family.spec.doubles_batch(guidance)
    if is_guided:
        if unconditional is None:
            raise ValueError("Guidance needs the conditioning of the empty prompt.")
        repeated = unconditional.select([0] * len(conditioning)) if len(unconditional) == 1 else unconditional
        conditioning = family.join([repeated, conditioning], unconditional.select([0]))
    sized = family.with_size_conditioning(conditioning, [SizeConditioning.whole(size)] * len(conditioning))
    whole = with_guidance(family, sized, guidance)

    def predict(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        output_BCHW = family.predict(noisy_BCHW, timestep.expand(noisy_BCHW.shape[0]), whole)
        return output_BCHW.float()

    return guided(predict, guidance) if is_guided else predict
