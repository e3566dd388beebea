"""The kinds of noise: their moments, their seeds, and what each leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.diffusion.noise import gaussian_like, generator_for
from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas, rescale_to_zero_snr
from modules.diffusion.training_noise import (
    NoiseSeed,
    NoiseSettings,
    TrainingNoise,
    generalized_offset_factor,
    training_noise,
)
from modules.system.devices import CPU

PROCESS = DDPMProcess(cumulative_alphas())
SHAPE = (400, 4, 16, 24)
CLEAN = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)) + 0.5
TIMESTEPS = torch.full((SHAPE[0],), 999)

KINDS: dict[str, dict[str, Any]] = {
    "offset": {"offset_weight": 0.3},
    "generalized offset": {"offset_weight": 0.3, "generalized_offset": True},
    "random offset": {"offset_weight": 0.3, "offset_random_strength": True},
    "adaptive offset": {"offset_weight": 0.1, "offset_adaptive_scale": 0.4},
    "perturbation": {"perturbation_weight": 0.4},
    "input perturbation": {"input_perturbation": 0.4},
    "random input perturbation": {"input_perturbation": 0.4, "input_perturbation_random_strength": True},
    "pyramid": {"pyramid_iterations": 6, "pyramid_discount": 0.5},
}


def noise_of(*, step: int = 0, micro_batch: int = 0, timesteps: torch.Tensor = TIMESTEPS, **kind: Any) -> TrainingNoise:
    return training_noise(NoiseSettings(**kind), CLEAN, timesteps, PROCESS, NoiseSeed(5, step, micro_batch, CPU))


def plain(*, step: int = 0) -> torch.Tensor:
    return gaussian_like(CLEAN, generator_for(5, "noise", step, 0), CPU)


def test_without_any_kind_the_noise_is_the_plain_one() -> None:
    noise = noise_of()
    assert torch.equal(noise.target_BCHW, plain())
    assert noise.input_BCHW is noise.target_BCHW


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_function_of_its_seed(kind: str) -> None:
    first, again, other = noise_of(**KINDS[kind]), noise_of(**KINDS[kind]), noise_of(micro_batch=1, **KINDS[kind])
    assert torch.equal(first.target_BCHW, again.target_BCHW)
    assert torch.equal(first.input_BCHW, again.input_BCHW)
    assert not torch.equal(first.input_BCHW, other.input_BCHW)
    assert not torch.equal(first.input_BCHW, plain())


@pytest.mark.parametrize("kind", [k for k in KINDS if "pyramid" not in k])
def test_the_plain_noise_below_is_unchanged(kind: str) -> None:
    """And what is added is independent of it."""
    added = noise_of(**KINDS[kind]).input_BCHW - plain()
    correlation = torch.corrcoef(torch.stack([added.flatten(), plain().flatten()]))[0, 1]
    assert abs(float(correlation)) < 0.01


def test_offset_noise_is_one_value_per_channel() -> None:
    noise = noise_of(offset_weight=0.3)
    added = noise.target_BCHW - plain()
    assert float(added.std(dim=(2, 3)).max()) < 1e-6
    values = added[:, :, 0, 0]
    assert float(values.std()) == pytest.approx(0.3, rel=0.05)
    assert abs(float(values.mean())) < 0.03
    assert noise.input_BCHW is noise.target_BCHW
    means = noise.target_BCHW.mean(dim=(2, 3))  # of 384 values each: the variance of the offset, and 1/384
    assert float(means.var()) == pytest.approx(0.09 + 1 / 384, rel=0.1)


def test_random_strengths_are_uniform_factors() -> None:
    full, random = (
        noise_of(offset_weight=0.3, offset_random_strength=on).target_BCHW - plain() for on in (False, True)
    )
    factors = (random / full)[:, :, 0, 0]
    assert float((factors - factors[:, :1]).abs().max()) < 1e-3  # one for each sample
    assert 0 <= float(factors.min()) < 0.05
    assert 0.95 < float(factors.max()) <= 1
    assert float(factors[:, 0].mean()) == pytest.approx(0.5, abs=0.05)


def test_the_adaptive_scale_follows_the_channels_mean() -> None:
    full = noise_of(offset_weight=1.0).target_BCHW - plain()
    adaptive = noise_of(offset_weight=0.1, offset_adaptive_scale=0.4).target_BCHW - plain()
    expected = 0.1 + 0.4 * CLEAN.mean(dim=(2, 3)).abs()
    assert torch.allclose((adaptive / full)[:, :, 0, 0], expected, atol=2e-2, rtol=1e-2)
    none = noise_of(offset_weight=0.1, offset_adaptive_scale=-100.0)
    assert torch.equal(none.target_BCHW, plain())  # never below 0


def test_generalized_offset_noise_grows_with_the_noise_level() -> None:
    timesteps = torch.arange(1000)
    factors = generalized_offset_factor(PROCESS, timesteps)
    assert float(factors[-1]) == 1
    assert bool((factors.diff() > 0).all())
    abar = cumulative_alphas().double()
    sigma = ((1 - abar) / abar).sqrt()
    assert torch.allclose(factors.double(), sigma / sigma[-1], rtol=1e-4)
    mixed = torch.full((SHAPE[0],), 300)
    added = noise_of(offset_weight=0.3, generalized_offset=True, timesteps=mixed).target_BCHW - plain()
    whole = noise_of(offset_weight=0.3, timesteps=mixed).target_BCHW - plain()
    assert torch.allclose(added, whole * factors[300], atol=1e-6)
    zero_snr = DDPMProcess(rescale_to_zero_snr(cumulative_alphas()), "v_prediction")
    assert bool(generalized_offset_factor(zero_snr, timesteps).isfinite().all())
    assert float(generalized_offset_factor(zero_snr, timesteps)[-1]) == 1


def test_the_generalized_offset_is_a_diffusion_process() -> None:
    """Its posterior means agree with the target: the balanced choice of Kutsuna 2024, checked at every timestep.

    The forward steps add `h_t xi` such that x_t has the offset `sqrt(1 - abar_t) psi_t xi`; the target's factor must be
    `sqrt(1 - abar_t) h_t / beta_t`.
    """
    abar = cumulative_alphas().double()
    psi = ((1 - abar) / abar).sqrt()
    phi = (1 - abar).sqrt() * psi
    alpha = abar[1:] / abar[:-1]
    added = phi[1:] - alpha.sqrt() * phi[:-1]
    assert torch.allclose((1 - abar[1:]).sqrt() * added / (1 - alpha), psi[1:], rtol=1e-4)


def test_perturbation_only_raises_the_variance() -> None:
    noise = noise_of(perturbation_weight=0.4)
    assert noise.input_BCHW is noise.target_BCHW
    assert float(noise.target_BCHW.var()) == pytest.approx(1.16, rel=0.02)
    neighbours = torch.stack([noise.target_BCHW[..., :-1].flatten(), noise.target_BCHW[..., 1:].flatten()])
    assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 0.01


def test_input_perturbation_leaves_the_target_alone() -> None:
    noise = noise_of(input_perturbation=0.4)
    assert torch.equal(noise.target_BCHW, plain())
    assert float((noise.input_BCHW - plain()).std()) == pytest.approx(0.4, rel=0.02)
    random = noise_of(input_perturbation=0.4, input_perturbation_random_strength=True).input_BCHW - plain()
    stds = random.std(dim=(1, 2, 3))
    assert float(stds.min()) < 0.05
    assert float(stds.max()) < 0.45
    assert float(stds.mean()) == pytest.approx(0.2, abs=0.02)


def test_pyramid_noise_is_correlated_over_distances_at_unit_variance() -> None:
    noise = noise_of(pyramid_iterations=6, pyramid_discount=0.5).target_BCHW
    assert torch.allclose(noise.std(dim=(1, 2, 3)), torch.ones(SHAPE[0]), atol=1e-5)
    near = torch.stack([noise[..., :-1].flatten(), noise[..., 1:].flatten()])
    assert 0.05 < float(torch.corrcoef(near)[0, 1]) < 0.4
    assert float(noise.mean(dim=(2, 3)).var()) > 5 / 384  # plain noise: 1/384
    weaker = noise_of(pyramid_iterations=6, pyramid_discount=0.1).target_BCHW
    assert float(weaker.mean(dim=(2, 3)).var()) < float(noise.mean(dim=(2, 3)).var())
    assert torch.allclose(
        noise_of(pyramid_iterations=1).target_BCHW, plain() / plain().std(dim=(1, 2, 3), keepdim=True)
    )
