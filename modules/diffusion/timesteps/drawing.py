"""Drawing timesteps: uniform numbers from seeds, mapped through the table of cumulative probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from modules.diffusion.noise import WHOLE, Rows, generator_for, uniform_timesteps
from modules.diffusion.timesteps.sampling import Stratification, TimestepSampling, timesteps_between
from modules.system.devices import Device, move_async


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """A micro-batch of `num_samples` images within its accumulation group; all random numbers derive from it.

    `group_start` is the number of the group's images before it, and `group_samples` the number of all its images. The
    micro-batches of a group share its strata. `group_samples` is 0 if the group is not known: then the micro-batch has
    separate strata. `rows` is the place of the images in the micro-batch, if several processes share it.
    """

    step: int
    micro_batch: int
    num_samples: int
    group_start: int = 0
    group_samples: int = 0
    rows: Rows = WHOLE


def draw_timesteps(
    sampling: TimestepSampling,
    position: BatchPosition,
    *,
    run_seed: int,
    num_timesteps: int,
    device: Device,
    is_continuous: bool = False,
    size_shift: float = 1.0,
) -> torch.Tensor:
    """Return the timesteps of a micro-batch, shape (B,): int64, or float32 from 0 to `num_timesteps` if continuous.

    `size_shift` is the factor of the dynamic shift at the size of the images.
    """
    if sampling.is_plain and not is_continuous:
        return uniform_timesteps(
            position.num_samples,
            num_timesteps=num_timesteps,
            generator=generator_for(run_seed, "timesteps", position.step, position.micro_batch),
            device=device,
            strengths=sampling.strengths,
            rows=position.rows,
        )
    among = timesteps_between(sampling.strengths, num_timesteps=num_timesteps)
    table = torch.tensor(sampling.cumulative(num_timesteps=num_timesteps, size_shift=size_shift), dtype=torch.float64)
    uniforms_B = _uniforms_of(sampling.stratification, position, run_seed)
    index_B = (torch.searchsorted(table, uniforms_B, right=True) - 1).clamp(0, len(among) - 1)
    if not is_continuous:
        return move_async(index_B + among.start, device)
    low_B, high_B = table[index_B], table[index_B + 1]
    within_B = (uniforms_B - low_B) / (high_B - low_B).clamp(min=torch.finfo(torch.float64).tiny)
    return move_async((index_B + among.start + within_B).float(), device)


def _uniforms_of(stratification: Stratification, position: BatchPosition, run_seed: int) -> torch.Tensor:
    """Return the uniform numbers of a micro-batch, float64 of shape (B,)."""
    counters, rows = (position.step, position.micro_batch), position.rows
    num_drawn = rows.num_drawn(position.num_samples)
    if stratification == "off":
        generator = generator_for(run_seed, "timesteps", *counters)
        uniforms_B = torch.rand(num_drawn, dtype=torch.float64, generator=generator)
        return rows.select(uniforms_B, position.num_samples)
    if not position.group_samples:
        generator = generator_for(run_seed, "timestep strata", *counters)
        return rows.select(stratified_uniforms(num_drawn, stratification, generator), position.num_samples)
    generator = generator_for(run_seed, "timestep strata", position.step)
    uniforms_G = stratified_uniforms(position.group_samples, stratification, generator)
    return uniforms_G[position.group_start : position.group_start + position.num_samples]


def stratified_uniforms(num_samples: int, stratification: Stratification, generator: torch.Generator) -> torch.Tensor:
    """Return one uniform number from each of `num_samples` equal parts of [0, 1], in random order; float64, (N,).

    Each is uniform over [0, 1] by itself, so the mean loss keeps its expectation, and its variance falls (Owen 2013,
    "Monte Carlo theory, methods and examples", sections 8.2 and 8.4). "antithetic" also mirrors the numbers: with u,
    1 - u is among them.
    """
    parts_N = torch.rand(num_samples, dtype=torch.float64, generator=generator)
    uniforms_N = (torch.arange(num_samples, dtype=torch.float64) + parts_N) / num_samples
    if stratification == "antithetic":
        half = num_samples // 2
        uniforms_N[num_samples - half :] = (1.0 - uniforms_N[:half]).flip(0)
    return uniforms_N[torch.randperm(num_samples, generator=generator)]
