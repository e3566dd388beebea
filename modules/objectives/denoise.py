"""The denoising loss (Ho et al. 2020, eq. 14): the error of the prediction of the target, squared unless set otherwise.

It stays unreduced, (B, C, H, W), until all weights are applied; only `sample_losses` reduces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.diffusion.latents import for_samples
from modules.diffusion.process import NoiseProcess
from modules.diffusion.weightings import WEIGHTINGS
from modules.families.protocol import ModelFamily
from modules.objectives.loss_mix import Errors
from modules.system.devices import tensor_on


@dataclass(frozen=True, eq=False)
class Prior:
    """The original model's prediction for a batch, (B, C, H, W), and its use.

    It is the target of the samples of `is_target_B`. `weights_B1HW` are the weights of the errors against it that are
    added to the losses against the target; None adds none.
    """

    prediction_BCHW: torch.Tensor
    is_target_B: Sequence[bool] = ()
    weights_B1HW: torch.Tensor | None = None


def squared_errors(output_BCHW: torch.Tensor, target_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the squared error of each element, float32 of shape (B, C, H, W)."""
    return (output_BCHW.float() - target_BCHW.float()).square()


def prediction_errors(
    family: ModelFamily,
    latents_BCHW: torch.Tensor,
    conditioning: Conditioning,
    *,
    timesteps_B: torch.Tensor,
    noise_BCHW: torch.Tensor,
    inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
) -> torch.Tensor:
    """Return the unweighted errors of the model's prediction at given timesteps and noise, float32 (B, C, H, W).

    `inputs` are the further inputs of a model variant (see `ModelFamily.predict`).
    """
    noisy_BCHW = family.process.add_noise(latents_BCHW, noise_BCHW, timesteps_B)
    output_BCHW = family.predict(noisy_BCHW, timesteps_B, conditioning, inputs)
    return squared_errors(output_BCHW, family.process.target(latents_BCHW, noise_BCHW, timesteps_B))


def area_weights(masks_B1HW: torch.Tensor, *, unmasked_weight: float, normalises: bool) -> torch.Tensor:
    """Return the weights of the errors of each place, (B, 1, H, W), for masks in [0, 1] (OneTrainer's masked training).

    They are the mask, at least `unmasked_weight`. With `normalises`, each image's are divided by their mean, so that
    the sum of its weights does not depend on the size of its mask; an image whose weights are all 0 keeps them.
    """
    weights_B1HW = masks_B1HW.clamp(min=unmasked_weight)
    return _of_mean_1(weights_B1HW) if normalises else weights_B1HW


def preservation_weights(
    masks_B1HW: torch.Tensor, *, unmasked_weight: float, weight: float, normalises: bool
) -> torch.Tensor:
    """Return the weights of the errors against the original model's prediction, (B, 1, H, W), for masks in [0, 1].

    They are what the area weights lack to 1, times `weight` (OneTrainer's masked prior preservation): 0 where the mask
    is white. With `normalises`, each image's are divided by their own mean before that.
    """
    weights_B1HW = 1.0 - masks_B1HW.clamp(min=unmasked_weight)
    return weight * (_of_mean_1(weights_B1HW) if normalises else weights_B1HW)


def _of_mean_1(weights_B1HW: torch.Tensor) -> torch.Tensor:
    """Return the weights divided by their mean in each image; weights that are all 0 stay."""
    means_B111 = weights_B1HW.mean(dim=tuple(range(1, weights_B1HW.dim())), keepdim=True)
    return weights_B1HW / torch.where(means_B111 > 0, means_B111, torch.ones_like(means_B111))


def weighted_errors(
    output_BCHW: torch.Tensor,
    target_BCHW: torch.Tensor,
    area_weights_B1HW: torch.Tensor | None = None,
    prior: Prior | None = None,
    errors: Errors = squared_errors,
) -> torch.Tensor:
    """Return the errors of a prediction with all weights of places, float32 (B, C, H, W).

    These are `area_weights * errors(output, target) + prior weights * errors(output, prior)`. Without weights and prior
    they are `errors(output, target)`.
    """
    if prior is not None and any(prior.is_target_B):
        is_target_B = tensor_on(prior.is_target_B, target_BCHW.device)
        target_BCHW = torch.where(for_samples(is_target_B, target_BCHW), prior.prediction_BCHW, target_BCHW)
    errors_BCHW = weighted_by_area(errors(output_BCHW, target_BCHW), area_weights_B1HW)
    if prior is None or prior.weights_B1HW is None:
        return errors_BCHW
    return errors_BCHW + errors(output_BCHW, prior.prediction_BCHW) * prior.weights_B1HW


def weighted_by_area(errors_BCHW: torch.Tensor, area_weights_B1HW: torch.Tensor | None) -> torch.Tensor:
    """Return the errors times the weights of their places; None counts as 1 everywhere."""
    return errors_BCHW if area_weights_B1HW is None else errors_BCHW * area_weights_B1HW


def sample_losses(errors_BCHW: torch.Tensor, *weights_B: torch.Tensor | None) -> torch.Tensor:
    """Return each sample's loss, float32 of shape (B,): the mean of its elements, times its weights in order.

    Weights of elements (a mask) must be applied before the mean. Weights of None count as 1.
    """
    losses_B = errors_BCHW.flatten(1).mean(dim=1)
    for weights in weights_B:
        if weights is not None:
            losses_B = losses_B * weights
    return losses_B


def timestep_weights(
    process: NoiseProcess, timesteps_B: torch.Tensor, *, weighting: str, gamma: float
) -> torch.Tensor | None:
    """Return the weights of the losses at these timesteps, shape (B,), or None where all are equal.

    Raises DarkroomError for a weighting that is not defined for the process.
    """
    return WEIGHTINGS[weighting].weights(process, timesteps_B, gamma)
