"""The denoising loss: one value per element until everything has weighed it, then reduced in one place."""

from __future__ import annotations

import pytest
import torch

from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.diffusion.weightings import weightings_for
from modules.objectives.denoise import (
    Prior,
    area_weights,
    preservation_weights,
    sample_losses,
    squared_errors,
    timestep_weights,
    weighted_errors,
)

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


@pytest.mark.parametrize("name", weightings_for(("epsilon",)))
def test_every_weighting_weighs(name: str) -> None:
    process, timesteps = DDPMProcess(cumulative_alphas()), torch.tensor([0, 500, 999])
    weights = timestep_weights(process, timesteps, weighting=name, gamma=5.0)
    assert (weights is None) == (name == "none")
    assert weights is None or (weights.shape == (3,) and bool(weights.isfinite().all()))


@pytest.mark.parametrize("normalises", [False, True])
@pytest.mark.parametrize("unmasked_weight", [0.0, 0.3])
@pytest.mark.parametrize("preservation", [0.0, 2.5])
def test_masked_losses_are_the_formula(normalises: bool, unmasked_weight: float, preservation: float) -> None:
    """Element by element, as OneTrainer's facts say it; one image is a prior image, one has a black mask."""
    masks = torch.rand(3, 1, 6, 8, generator=GENERATOR).round(decimals=1)
    masks[2] = 0.0
    prior = torch.randn(3, 4, 6, 8, generator=GENERATOR)
    area = area_weights(masks, unmasked_weight=unmasked_weight, normalises=normalises)
    kept = preservation_weights(masks, unmasked_weight=unmasked_weight, weight=preservation, normalises=normalises)
    found = weighted_errors(OUTPUT, TARGET, area, Prior(prior, (False, True, False), kept))
    for sample in range(3):
        clamped = [[max(masks[sample, 0, y, x].item(), unmasked_weight) for x in range(8)] for y in range(6)]
        inside = sum(map(sum, clamped)) / 48 if normalises else 1.0
        outside = sum(1 - w for row in clamped for w in row) / 48 if normalises else 1.0
        for channel in range(4):
            for y in range(6):
                for x in range(8):
                    place = sample, channel, y, x
                    target = prior[place] if sample == 1 else TARGET[place]
                    expected = clamped[y][x] / (inside or 1.0) * (OUTPUT[place] - target) ** 2
                    expected += (
                        preservation * (1 - clamped[y][x]) / (outside or 1.0) * (OUTPUT[place] - prior[place]) ** 2
                    )
                    assert found[place].item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-7)


def test_no_gradient_comes_from_outside_the_mask() -> None:
    masks = torch.zeros(3, 1, 6, 8)
    masks[..., :2] = 1.0
    for normalises in (False, True):
        output = OUTPUT.clone().requires_grad_()
        weights = area_weights(masks, unmasked_weight=0.0, normalises=normalises)
        sample_losses(weighted_errors(output, TARGET, weights), WEIGHTS).mean().backward()
        assert output.grad is not None
        assert bool((output.grad[..., 2:] == 0).all())
        assert bool((output.grad[..., :2] != 0).all())


def test_without_masks_the_errors_are_the_plain_ones_to_the_bit() -> None:
    assert torch.equal(weighted_errors(OUTPUT, TARGET), squared_errors(OUTPUT, TARGET))
