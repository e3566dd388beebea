"""The guided prediction of a model for some prompts, the same while sampling images and while training on them."""

from __future__ import annotations

import torch

from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.data.size_conditioning import SizeConditioning
from modules.families.protocol import ModelFamily
from modules.sampling.denoising_loop import Predict, guided


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
    of 1 or less is none. `unconditional`, needed only for guidance, is the conditioning of the empty prompt, once or B
    times. Both receive the size conditioning of uncropped images of `size`. Raises ValueError where it is missing.
    """
    is_guided = guidance > 1
    if is_guided:
        if unconditional is None:
            raise ValueError("Guidance needs the conditioning of the empty prompt.")
        repeated = unconditional.select([0] * len(conditioning)) if len(unconditional) == 1 else unconditional
        conditioning = family.join([repeated, conditioning], unconditional.select([0]))
    whole = family.with_size_conditioning(conditioning, [SizeConditioning.whole(size)] * len(conditioning))

    def predict(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        output_BCHW = family.predict(noisy_BCHW, timestep.expand(noisy_BCHW.shape[0]), whole)
        return output_BCHW.float()

    return guided(predict, guidance) if is_guided else predict
