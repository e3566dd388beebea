"""Noise and timesteps from seeds: each use has a generator of its own, on the CPU; the result is moved to the device.

The CPU generates the same numbers for every device, at a cost that is negligible beside a training step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.diffusion.timesteps.sampling import Strengths, timesteps_between
from modules.system.devices import Device, move
from modules.system.seeds import derive_seed


def generator_for(run_seed: int, purpose: str, *counters: int) -> torch.Generator:
    """Return a generator whose random numbers are a function of the arguments only (see `derive_seed`)."""
    return torch.Generator("cpu").manual_seed(derive_seed(run_seed, purpose, *counters))


def gaussian_like(tensor_BCHW: torch.Tensor, generator: torch.Generator, device: Device) -> torch.Tensor:
    """Return standard normal noise of a tensor's shape, float32, on a device."""
    return move(torch.randn(tensor_BCHW.shape, generator=generator), device)


def uniform_timesteps(
    batch_size: int,
    *,
    num_timesteps: int,
    generator: torch.Generator,
    device: Device,
    strengths: Strengths = (0.0, 1.0),
) -> torch.Tensor:
    """Return timesteps sampled uniformly from those of the schedule's `strengths`, int64 of shape (B,)."""
    among = timesteps_between(strengths, num_timesteps=num_timesteps)
    return move(torch.randint(among.start, among.stop, (batch_size,), generator=generator), device)


def fixed_timesteps(num_levels: int, *, num_timesteps: int) -> Sequence[int]:
    """Return timesteps at the midpoints of `num_levels` equal intervals of the schedule, for a reproducible loss."""
    return [int((i + 0.5) * num_timesteps / num_levels) for i in range(num_levels)]
