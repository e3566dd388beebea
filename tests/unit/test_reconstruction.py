"""The loss and the metrics of reconstructions, against other implementations and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

from modules.objectives.reconstruction import (
    kl_divergences,
    peak_signal_to_noise,
    pixel_errors,
    structural_similarity,
)


def some_images(*, seed: int) -> torch.Tensor:
    return torch.rand(2, 3, 24, 16, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_pixel_errors_mix_the_squared_and_the_absolute_error() -> None:
    errors = pixel_errors(torch.full((1, 3, 2, 2), 0.5), torch.zeros(1, 3, 2, 2), mse_strength=2.0, mae_strength=0.1)
    assert torch.allclose(errors, torch.full((1, 3, 2, 2), 0.55))


def test_the_divergence_is_that_of_diffusers_as_a_mean() -> None:
    parameters = torch.randn(2, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    posterior = DiagonalGaussianDistribution(parameters)
    found = kl_divergences(posterior.mean, posterior.logvar)
    assert torch.allclose(found, posterior.kl() / (4 * 4 * 4))


def test_psnr_by_hand() -> None:
    images = torch.zeros(1, 3, 8, 8)
    assert peak_signal_to_noise(images + 0.2, images).item() == pytest.approx(20.0, abs=1e-4)  # an error of 0.1 of 1
    assert peak_signal_to_noise(images, images).item() == pytest.approx(100.0)


def test_ssim_by_hand() -> None:
    """Of two flat images only the luminance term is left; of the same image it is 1."""
    images = some_images(seed=0)
    assert torch.allclose(structural_similarity(images, images), torch.ones(2), atol=1e-5)
    flat, other = torch.full((1, 3, 16, 16), -0.2), torch.full((1, 3, 16, 16), 0.4)  # 0.4 and 0.7 of 1
    expected = (2 * 0.4 * 0.7 + 0.01**2) / (0.4**2 + 0.7**2 + 0.01**2)
    assert structural_similarity(flat, other).item() == pytest.approx(expected, abs=1e-3)
    noisy = structural_similarity(images + 0.3 * some_images(seed=1), images)
    assert (noisy < structural_similarity(images + 0.1 * some_images(seed=1), images)).all()


def test_values_outside_of_the_range_are_clamped_as_in_a_written_image() -> None:
    images = torch.ones(1, 3, 16, 16)
    assert math.isclose(peak_signal_to_noise(images * 3, images).item(), 100.0, rel_tol=1e-6)
