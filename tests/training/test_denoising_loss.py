"""The denoising loss: one value per element until everything has weighed it, then reduced in one place."""

from __future__ import annotations

import pytest
import torch

from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.diffusion.weightings.registry import WEIGHTINGS
from modules.objectives.denoise import sample_losses, squared_errors, timestep_weights

GENERATOR = torch.Generator().manual_seed(5)
OUTPUT, TARGET = (torch.randn(3, 4, 6, 8, generator=GENERATOR) for _ in range(2))
WEIGHTS, MORE = torch.tensor([0.3, 1.0, 7.0]), torch.tensor([1.7, 0.0, 0.9])


def test_errors_have_the_shape_of_the_latents_and_float32() -> None:
    errors = squared_errors(OUTPUT.bfloat16(), TARGET)
    assert (errors.shape, errors.dtype) == (OUTPUT.shape, torch.float32)


def test_weights_come_after_the_mean_in_their_order_to_the_bit() -> None:
    errors = squared_errors(OUTPUT, TARGET)
    plain = (OUTPUT - TARGET).square().flatten(1).mean(dim=1)
    assert torch.equal(sample_losses(errors), plain)
    assert torch.equal(sample_losses(errors, None, WEIGHTS), plain * WEIGHTS)
    assert torch.equal(sample_losses(errors, WEIGHTS, MORE), (plain * WEIGHTS) * MORE)


def test_a_mask_may_weigh_the_elements_before() -> None:
    mask = torch.zeros(3, 1, 6, 8)
    mask[..., :2] = 1.0
    masked = sample_losses(squared_errors(OUTPUT, TARGET) * mask, WEIGHTS)
    inside = (OUTPUT - TARGET)[..., :2].square().flatten(1).mean(dim=1) * 2 / 8
    assert masked.tolist() == pytest.approx((inside * WEIGHTS).tolist())


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_every_weighting_weighs_or_is_refused(name: str) -> None:
    process, timesteps = DDPMProcess(cumulative_alphas()), torch.tensor([0, 500, 999])
    if WEIGHTINGS[name].weights is None:
        with pytest.raises(ValueError, match="not supported yet"):
            timestep_weights(process, timesteps, weighting=name, gamma=5.0)
        return
    weights = timestep_weights(process, timesteps, weighting=name, gamma=5.0)
    assert (weights is None) == (name == "none")
    assert weights is None or (weights.shape == (3,) and bool(weights.isfinite().all()))
