"""The noise of a training step: Gaussian, pyramid and offset noise, and perturbations of it.

Each kind has its own random numbers, so that switching one on changes no other draw. Validation uses none of them.
Shapes: B samples, C channels, H height and W width of the latents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import interpolate

from modules.diffusion.latents import for_samples
from modules.diffusion.noise import WHOLE, Rows, gaussian_like, generator_for
from modules.diffusion.process import NoiseProcess
from modules.system.devices import Device, move_async
from modules.system.errors import DarkroomError

_HIGHEST_SIGMA = 14.6146  # of Stable Diffusion's own schedule, at its last timestep


@dataclass(frozen=True, slots=True)
class NoiseSettings:
    """The kinds of noise beyond the Gaussian; all are off by default. See `training_noise`."""

    offset_weight: float = 0.0
    generalized_offset: bool = False
    offset_random_strength: bool = False
    offset_adaptive_scale: float = 0.0
    perturbation_weight: float = 0.0
    input_perturbation: float = 0.0
    input_perturbation_random_strength: bool = False
    pyramid_iterations: int = 0
    pyramid_discount: float = 0.3

    @property
    def has_offset(self) -> bool:
        """Whether offset noise is added; the adaptive scale alone also adds it."""
        return self.offset_weight != 0.0 or self.offset_adaptive_scale != 0.0


@dataclass(frozen=True, eq=False)
class TrainingNoise:
    """The noise of which the target is made, and the noise of the noisy latents; float32, (B, C, H, W) each.

    They are the same tensor without input perturbation.
    """

    target_BCHW: torch.Tensor
    input_BCHW: torch.Tensor


@dataclass(frozen=True, slots=True)
class NoiseSeed:
    """The source of all random numbers of a micro-batch's noise, and the device that gets the noise.

    `rows` is the place of the samples in the micro-batch, if several processes share it.
    """

    run_seed: int
    step: int
    micro_batch: int
    device: Device
    rows: Rows = WHOLE

    def generator(self, purpose: str) -> torch.Generator:
        """Return the generator of one kind of noise."""
        return generator_for(self.run_seed, purpose, self.step, self.micro_batch)


def training_noise(
    settings: NoiseSettings,
    clean_BCHW: torch.Tensor,
    timesteps_B: torch.Tensor,
    process: NoiseProcess,
    seed: NoiseSeed,
) -> TrainingNoise:
    """Return the noise of a micro-batch with clean latents, each at its timestep.

    Pyramid noise comes first, since it is scaled to unit variance. Offset noise and perturbation noise are added to the
    noisy latents and to the target, as in OneTrainer. Perturbation noise therefore only raises the variance. Input
    perturbation is added to the noisy latents alone, so that the model learns to correct errors in its input (Ning et
    al. 2023, "Input Perturbation Reduces Exposure Bias in Diffusion Models", algorithm 1; kohya's `ip_noise_gamma`).
    """
    noise_BCHW = gaussian_like(clean_BCHW, seed.generator("noise"), seed.device, seed.rows)
    if settings.pyramid_iterations:
        generator = seed.generator("pyramid noise")
        noise_BCHW = pyramid_noise(noise_BCHW, settings.pyramid_iterations, settings.pyramid_discount, generator, seed)
    if settings.has_offset:
        noise_BCHW = noise_BCHW + _offset(settings, clean_BCHW, timesteps_B, process, seed)
    if settings.perturbation_weight:
        extra_BCHW = gaussian_like(clean_BCHW, seed.generator("perturbation noise"), seed.device, seed.rows)
        noise_BCHW = noise_BCHW + settings.perturbation_weight * extra_BCHW
    if not settings.input_perturbation:
        return TrainingNoise(noise_BCHW, noise_BCHW)
    generator = seed.generator("input perturbation")
    extra_BCHW = gaussian_like(clean_BCHW, generator, seed.device, seed.rows)
    strength_B111 = _strengths(clean_BCHW, settings.input_perturbation_random_strength, generator, seed)
    return TrainingNoise(noise_BCHW, noise_BCHW + settings.input_perturbation * strength_B111 * extra_BCHW)


def pyramid_noise(
    noise_BCHW: torch.Tensor, iterations: int, discount: float, generator: torch.Generator, seed: NoiseSeed
) -> torch.Tensor:
    """Return multi-resolution noise: Gaussian noise plus coarser and coarser noise, each sample at unit variance.

    Whitaker 2023, "Multi-Resolution Noise for Diffusion Model Training", with kohya's meaning of the settings: for
    each level `i` from 0 to `iterations - 1`, noise of `1 / r^i` of the size, with r uniform in [2, 4), is enlarged
    bilinearly and added with the weight `discount^i`, until a side is 1. Level 0 has the full size: together with the
    given noise it is the given noise at twice the variance.
    """
    num_samples, *channels, height, width = noise_BCHW.shape  # of a video, each frame of a channel has its own
    result_BCHW = 2.0**0.5 * noise_BCHW
    for level in range(1, iterations):
        ratio = 2.0 + 2.0 * float(torch.rand((), dtype=torch.float64, generator=generator))
        level_height = max(1, int(height / ratio**level))
        level_width = max(1, int(width / ratio**level))
        num_drawn = seed.rows.num_drawn(num_samples)
        drawn = torch.randn((num_drawn, math.prod(channels), level_height, level_width), generator=generator)
        coarse = seed.rows.select(drawn, num_samples)
        enlarged_BCHW = interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
        enlarged_BCHW = enlarged_BCHW.view(num_samples, *channels, height, width)
        result_BCHW = result_BCHW + discount**level * move_async(enlarged_BCHW, seed.device)
        if level_height == 1 or level_width == 1:
            break
    scaled_BCHW: torch.Tensor = result_BCHW / result_BCHW.std(dim=tuple(range(1, result_BCHW.dim())), keepdim=True)
    return scaled_BCHW


def generalized_offset_factor(process: NoiseProcess, timesteps_B: torch.Tensor) -> torch.Tensor:
    """Return the factor psi_t of offset noise that grows with the noise level, in [0, 1], float32 of shape (B,).

    Kutsuna 2024, "Generalized Diffusion Model with Adjusted Offset Noise" (arXiv 2412.03134): if each step of the
    forward process also adds `h_t xi`, with one offset xi per sample, then `x_t = sqrt(abar_t) x_0 + phi_t xi +
    sqrt(1 - abar_t) eps` with `phi_t = sqrt(alpha_t) phi_(t-1) + h_t`, and the target is `eps + psi_t xi` with
    `psi_t = sqrt(1 - abar_t) h_t / beta_t`. Offset noise adds the same to both, so that `phi_t = sqrt(1 - abar_t)
    psi_t` (the paper's balanced choice). The only solution is `psi_t` proportional to `sqrt((1 - abar_t) / abar_t)`,
    the noise level sigma_t. It is 1 at the last timestep: `psi_t = sigma_t / sigma_T`. With zero terminal SNR sigma_T
    is infinite; sigma is limited to the highest of Stable Diffusion's own schedule. Raises DarkroomError for a process
    without such steps.
    """
    if process.spec.flow is not None:
        raise DarkroomError(process.spec.undefined_message("Generalized offset noise"), advice="Switch it off.")
    last_1 = torch.full_like(timesteps_B[:1], process.num_timesteps - 1)
    sigma_B = process.snr(timesteps_B).rsqrt().clamp(max=_HIGHEST_SIGMA)
    psi_B: torch.Tensor = sigma_B / process.snr(last_1).rsqrt().clamp(max=_HIGHEST_SIGMA)
    return psi_B


def _offset(
    settings: NoiseSettings,
    clean_BCHW: torch.Tensor,
    timesteps_B: torch.Tensor,
    process: NoiseProcess,
    seed: NoiseSeed,
) -> torch.Tensor:
    """Return one value per sample and channel, (B, C, 1, 1) (Guttenberg 2023, "Diffusion with Offset Noise").

    The adaptive scale adds the absolute mean of the sample's channel to the weight, as kohya's `adaptive_noise_scale`.
    """
    generator = seed.generator("offset noise")
    num_samples, channels, *places = clean_BCHW.shape
    drawn = torch.randn((seed.rows.num_drawn(num_samples), channels, *(1 for _ in places)), generator=generator)
    offset_BC11 = move_async(seed.rows.select(drawn, num_samples), seed.device)
    weight = _strengths(clean_BCHW, settings.offset_random_strength, generator, seed) * settings.offset_weight
    if settings.offset_adaptive_scale:
        means_BC11 = clean_BCHW.float().mean(dim=tuple(range(2, clean_BCHW.dim())), keepdim=True).abs()
        weight = (weight + settings.offset_adaptive_scale * means_BC11).clamp(min=0.0)
    if settings.generalized_offset:
        weight = weight * for_samples(generalized_offset_factor(process, timesteps_B), clean_BCHW)
    return weight * offset_BC11


def _strengths(clean_BCHW: torch.Tensor, is_random: bool, generator: torch.Generator, seed: NoiseSeed) -> torch.Tensor:
    """Return a factor for each sample, (B, 1, 1, 1): uniform in [0, 1), or 1."""
    num_samples = len(clean_BCHW)
    if not is_random:
        return for_samples(torch.ones(num_samples, device=seed.device.torch), clean_BCHW)
    drawn = torch.rand(seed.rows.num_drawn(num_samples), generator=generator)
    return for_samples(move_async(seed.rows.select(drawn, num_samples), seed.device), clean_BCHW)
