"""Measures of an untrained model that show which of its parts is damaged or does not fit the others.

None of them needs the weights of a published model for comparison:

- A weight that is not finite.
- The largest singular value of a matrix against that of random numbers of the same size and mean square,
  `rms (sqrt(m) + sqrt(n))` (Marchenko and Pastur 1967; Bai and Yin 1993). A matrix that has learned anything has some
  directions far above it (Martin and Mahoney 2021, "Implicit Self-Regularization in Deep Neural Networks").
- The root mean square of the latents of an image, near 1 for the VAE and the scale that belong together, and the
  contrast of the image: without any, its latents are small.
- The error of the colours of an image that the VAE has encoded and decoded, as means of small squares: a decoder that
  is a diffusion model, and any VAE of a noisy image, draws other details.
- The mean colours of what the model expects for "a red square", "a blue square" and so on. Every model that follows
  prompts in English knows colours, and none can by chance: the correlation with eight colours needs the tokenizer, the
  text encoders, the denoiser and the VAE to work together.
- The losses of the best linear guess of each latent value from its noisy one, of which any trained model stays below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.buckets import Size
from modules.diffusion.noise import fixed_timesteps
from modules.diffusion.process import NoiseProcess
from modules.families.protocol import ModelFamily
from modules.sampling.prediction import read_sample_image
from modules.system.devices import CPU, move
from trainer import phases
from trainer.callbacks.image_sampler import ImageSampler
from trainer.job import Job
from trainer.preflight.model import kind_of_model, without_lacking_parts
from trainer.probe.self_test_verdict import Measures
from trainer.run.machine import machine_of, no_spill
from trainer.run.threads import choose_num_threads
from trainer.run.untrained import load_untrained
from trainer.step.precision import process_settings

COLOURS = MappingProxyType(
    {
        "red": (1, -1, -1),
        "orange": (1, 0, -1),
        "yellow": (1, 1, -1),
        "green": (-1, 1, -1),
        "blue": (-1, -1, 1),
        "purple": (0, -1, 0),
        "black": (-1, -1, -1),
        "white": (1, 1, 1),
    }
)
_PROMPT = "a {} square"
_SEEDS = (0, 1)
_NOISE_LEVEL = 0.9  # of the timesteps: nearly nothing is decided yet, and all channels of colour are asked for
_MAX_MATRICES = 24  # of a text encoder, spread evenly
_POWER_STEPS = 12
_MIN_SIDE = 16
_SQUARES = 16  # along a side: 64 px at 1024 px
_LEARNED = 1.1  # of random numbers: those of text encoders are up to 1.02, the demo's from 1.35


def measure_model(config: Config, image: Path, *, side_px: int, num_timesteps: int, job: Job, what: str) -> Measures:
    """Load the model of a config and measure it with an image, at a size; the memory is freed.

    Raises DarkroomError for a model that cannot be read, OSError for such an image, StopRequested.
    """
    job.progress(what, 0, 1)
    machine = machine_of(config.general, config.training.precision)
    device = machine.train_device
    num_threads = choose_num_threads(config.general.num_threads, device_is_cpu=device.is_cpu, in_window=False)
    settings = process_settings(
        num_threads=num_threads, precision=machine.precision.name, deterministic=config.general.deterministic
    )
    with settings, no_spill(device), torch.no_grad():
        config = without_lacking_parts(config, kind_of_model(config))
        family, placement, sampled = load_untrained(
            config, machine, lambda done, total: job.progress("Downloading the model", int(done), int(total))
        )
        job.desk.check()
        if broken := tuple(_broken_parts(family)):
            return Measures(broken_parts=broken)
        random_parts = tuple(_random_parts(family))
        sampler = ImageSampler(family, placement, device, machine.precision, sampled)
        image_13PP = read_sample_image(image, Size(side_px, side_px))
        with placement.phase(phases.SAMPLE_IMAGES):
            latents_1CHW = family.encode_images(move(image_13PP, device))
        with placement.phase(phases.SAMPLE_DECODE):
            decoded_13PP = move(family.decode(latents_1CHW).float(), CPU)
        rms = float(latents_1CHW.float().square().mean().sqrt())
        fit, spread = _colours(sampler, side_px, job, what)
        process = family.process
        timesteps = fixed_timesteps(num_timesteps, num_timesteps=process.num_timesteps)
        return Measures(
            random_parts=random_parts,
            latents_rms=rms,
            contrast=float(image_13PP.std()),
            decoding_error=_decoding_error(decoded_13PP.clamp(-1, 1) - image_13PP),
            colour_fit=fit,
            colour_spread=spread,
            prediction_type=process.prediction_type,
            bounds={str(t): uninformed_loss(process, t, variance=rms**2) for t in timesteps},
        )


def uninformed_loss(process: NoiseProcess, timestep: int, *, variance: float) -> float:
    """Return the loss at a timestep of the best multiple of the noisy latents, for white latents of a variance.

    With `x_t = a x_0 + b eps`, the target `c x_0 + d eps` and independent x_0 of variance s^2 and eps of variance 1, it
    is `(c b - d a)^2 s^2 / (a^2 s^2 + b^2)`.
    """
    zero, one, at = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1), torch.tensor([timestep])
    a, b = float(process.add_noise(one, zero, at)), float(process.add_noise(zero, one, at))
    c, d = float(process.target(one, zero, at)), float(process.target(zero, one, at))
    return (c * b - d * a) ** 2 * variance / (a * a * variance + b * b)


def excess_of_random(matrix_MN: torch.Tensor) -> float:
    """Return the largest singular value of a matrix, divided by that of random numbers with its mean square.

    About 1 for random numbers, whatever their distribution; NaN for zeros.
    """
    matrix_MN = matrix_MN.float()
    rms = float(matrix_MN.square().mean().sqrt())
    vector_N = torch.randn(matrix_MN.shape[1], generator=torch.Generator().manual_seed(0)).to(matrix_MN.device)
    for _ in range(_POWER_STEPS):
        vector_N = torch.nn.functional.normalize(matrix_MN.T @ (matrix_MN @ vector_N), dim=0)
    largest = float((matrix_MN @ vector_N).norm())
    expected = rms * (math.sqrt(matrix_MN.shape[0]) + math.sqrt(matrix_MN.shape[1]))
    return largest / expected if expected else math.nan


def _broken_parts(family: ModelFamily) -> Iterator[str]:
    """Yield the labels of parts with weights that are not finite."""
    for part in family.parts.values():
        floats = (p for p in part.module.parameters() if p.is_floating_point() and not p.is_meta)
        if not all(bool(torch.isfinite(p.float() if p.itemsize == 1 else p).all()) for p in floats):  # float8 has none
            yield part.spec.label


def _random_parts(family: ModelFamily) -> Iterator[str]:
    """Yield the labels of text encoders of whose matrices none differs from random numbers."""
    for part in family.parts.values():
        if part.spec.role != "text_encoder":
            continue
        weights = [
            p
            for p in part.module.parameters()
            if p.ndim == 2 and min(p.shape) >= _MIN_SIDE and p.is_floating_point() and not p.is_meta and p.itemsize > 1
        ]
        chosen = weights[:: -(-len(weights) // _MAX_MATRICES)] if weights else []
        excesses = [e for e in map(excess_of_random, chosen) if math.isfinite(e)]
        if excesses and max(excesses) < _LEARNED:
            yield part.spec.label


def _decoding_error(error_13PP: torch.Tensor) -> float:
    """Return the mean square of an error's means in squares of a 16th of its side."""
    return float(torch.nn.functional.avg_pool2d(error_13PP, error_13PP.shape[-1] // _SQUARES).square().mean())


def _colours(sampler: ImageSampler, side_px: int, job: Job, what: str) -> tuple[float, float]:
    """Return how the mean colours of squares fit those that their prompts name, and their spread."""
    prompts = [
        SamplePrompt(prompt=_PROMPT.format(name), width_px=side_px, height_px=side_px, seed=seed)
        for name in COLOURS
        for seed in _SEEDS
    ]
    num_done = 0

    def next_prompt() -> None:
        nonlocal num_done
        job.progress(what, num_done, len(prompts))
        num_done += 1

    timestep = int(_NOISE_LEVEL * sampler.family.process.num_timesteps)
    images = sampler.guess(prompts, timestep, on_step=next_prompt)
    means = np.array([_mean_colour(image) for image in images]).reshape(len(COLOURS), len(_SEEDS), 3).mean(axis=1)
    return fit_of_colours(means)


def _mean_colour(image: Image.Image) -> Sequence[float]:
    mean: list[float] = (np.asarray(image, dtype=np.float64).reshape(-1, 3).mean(axis=0) / 127.5 - 1).tolist()
    return mean


def fit_of_colours(means_N3: NDArray[np.float64]) -> tuple[float, float]:
    """Return the correlation of mean colours with those of `COLOURS`, in their order, and their standard deviation."""
    seen = means_N3 - means_N3.mean(axis=0)
    named = np.array(list(COLOURS.values()), dtype=np.float64)
    named -= named.mean(axis=0)
    spread = float(np.sqrt((seen**2).mean()))
    return float((seen * named).sum() / math.sqrt((seen**2).sum() * (named**2).sum())) if spread else 0.0, spread
