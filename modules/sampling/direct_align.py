"""Direct-Align: an image with a gradient from a single prediction, at any noise level.

Shen et al. 2025, "Directly Aligning the Full Diffusion Trajectory with Fine-Grained Human Preference" (SRPO, arXiv
2509.06942), section 3.1. A clean image x_0 is noised with known noise eps, and the model takes one step of the
denoising loop. The noise that is left there is known, so the image follows exactly, and only the change by the step,
which has a gradient, is the model's: even at much noise the image is clean enough for a reward.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.families.protocol import ModelFamily
from modules.sampling.gaussian_step import GaussianStep, timestep_tensor
from modules.sampling.prediction import guided_prediction
from modules.sampling.rollout import RolloutSettings, decode_images, forget_casts, generators_of, noise_of, steps_of
from modules.system.devices import Device


def steps_between(steps: Sequence[GaussianStep], *, lowest: float, highest: float) -> tuple[int, ...]:
    """Return the numbers of the steps whose timestep is in a range, both bounds included."""
    return tuple(number for number, step in enumerate(steps) if lowest <= step.timestep <= highest)


def align_directly(
    family: ModelFamily,
    clean_BCHW: torch.Tensor,
    conditioning: Conditioning,
    unconditional: Conditioning | None,
    *,
    number: int,
    seeds: Sequence[int],
    size: Size,
    settings: RolloutSettings,
    device: Device,
    temp_device: Device,
) -> torch.Tensor:
    """Return the images (B, 3, P, P) in [0, 1] of clean latents (B, C, H, W) after a predicted step, with its graph.

    `number` is the step of the denoising loop of `settings`, `seeds` are the seeds of each image's known noise; the
    other arguments are as for `roll_out`. The VAE is checkpointed.
    """
    step = steps_of(family, settings, size)[number]
    predict = guided_prediction(family, conditioning, unconditional, size=size, guidance=settings.guidance)
    timestep = timestep_tensor(step, clean_BCHW.device)
    noise_BCHW = noise_of(generators_of(seeds), family.spec, size, device)
    noisy_BCHW = family.process.add_noise(clean_BCHW.detach(), noise_BCHW, timestep.expand(len(clean_BCHW)))
    forget_casts()
    next_BCHW = step.mean(predict(noisy_BCHW, timestep), noisy_BCHW)
    clean_BCHW = step.clean_before(next_BCHW, noise_BCHW)
    return decode_images(family, clean_BCHW, conditioning, train_device=device, temp_device=temp_device)
