"""Noise and timesteps from seeds: each use has its own generator, on the CPU; the result is moved to the device.

The CPU generates the same numbers for every device, at a cost that is negligible next to a training step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.diffusion.timesteps.sampling import Strengths, timesteps_between
from modules.system.devices import Device, move_async
from modules.system.seeds import derive_seed


def generator_for(run_seed: int, purpose: str, *counters: int) -> torch.Generator:
    """Return a generator whose random numbers are a function of the arguments only (see `derive_seed`)."""
    return torch.Generator("cpu").manual_seed(derive_seed(run_seed, purpose, *counters))


@dataclass(frozen=True, slots=True)
class Rows:
    """The place of some samples among the `total` of a micro-batch, from `first` on: their numbers are drawn together.

    Several processes may share a micro-batch: each draws all its numbers and uses the numbers of its own samples. A
    total of 0 means that the samples are the whole micro-batch.
    """

    first: int = 0
    total: int = 0

    def num_drawn(self, num_samples: int) -> int:
        """Return how many samples' numbers to draw for `num_samples` samples."""
        return self.total or num_samples

    def select(self, drawn: torch.Tensor, num_samples: int) -> torch.Tensor:
        """Return the numbers of this process's samples among the micro-batch's, along the first dimension."""
        return drawn[self.first : self.first + num_samples] if self.total else drawn


WHOLE = Rows()


def gaussian_like(
    tensor_BCHW: torch.Tensor, generator: torch.Generator, device: Device, rows: Rows = WHOLE
) -> torch.Tensor:
    """Return standard normal noise of a tensor's shape, float32, on a device."""
    num_samples, *shape = tensor_BCHW.shape
    drawn = torch.randn((rows.num_drawn(num_samples), *shape), generator=generator)
    return move_async(rows.select(drawn, num_samples), device)


def uniform_timesteps(
    batch_size: int,
    *,
    num_timesteps: int,
    generator: torch.Generator,
    device: Device,
    strengths: Strengths = (0.0, 1.0),
    rows: Rows = WHOLE,
) -> torch.Tensor:
    """Return timesteps sampled uniformly from the schedule's `strengths`, int64 of shape (B,)."""
    among = timesteps_between(strengths, num_timesteps=num_timesteps)
    drawn = torch.randint(among.start, among.stop, (rows.num_drawn(batch_size),), generator=generator)
    return move_async(rows.select(drawn, batch_size), device)


def fixed_timesteps(num_levels: int, *, num_timesteps: int) -> Sequence[int]:
    """Return timesteps at the midpoints of `num_levels` equal intervals of the schedule, for a reproducible loss.

    They are whole numbers for every process: names of a chart's lines, and 1000 sigma for a flow.
    """
    return [int((i + 0.5) * num_timesteps / num_levels) for i in range(num_levels)]
