"""The weighted sum of elementwise losses, and the delta of the Huber losses at each timestep."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from modules.diffusion.process import NoiseProcess
from modules.objectives.losses.registry import LOSSES, HuberForm

HuberSchedule = Literal["constant", "snr", "exponential"]

# `errors(output, target)` returns the error of each element, float32 of shape (B, C, H, W).
Errors = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LossMix:
    """The strengths of the losses by name, and what the Huber losses need: delta, its schedule, and their form.

    The default is the squared error.
    """

    strengths: tuple[tuple[str, float], ...] = (("mse", 1.0),)
    delta: float = 1.0
    schedule: HuberSchedule = "constant"
    form: HuberForm = "huber"

    def at(self, process: NoiseProcess, timesteps_B: torch.Tensor) -> Errors:
        """Return the function of the errors of predictions at these timesteps: the sum of strength times loss.

        Raises ValueError if all strengths are 0: nothing would be trained.
        """
        terms = [(LOSSES[name], strength) for name, strength in self.strengths if strength]
        if not terms:
            raise ValueError("all loss strengths are 0")
        deltas_B = huber_deltas(process, timesteps_B, delta=self.delta, schedule=self.schedule)
        deltas_B111 = deltas_B[:, None, None, None]

        def errors(output_BCHW: torch.Tensor, target_BCHW: torch.Tensor) -> torch.Tensor:
            differences_BCHW = output_BCHW.float() - target_BCHW.float()
            weighted = []
            for spec, strength in terms:
                losses_BCHW = spec.in_form(self.form)(differences_BCHW, deltas_B111)
                weighted.append(losses_BCHW if strength == 1.0 else losses_BCHW * strength)
            total_BCHW = weighted[0]
            for one_BCHW in weighted[1:]:
                total_BCHW = total_BCHW + one_BCHW
            return total_BCHW

        return errors


SQUARED = LossMix()


def huber_deltas(
    process: NoiseProcess, timesteps_B: torch.Tensor, *, delta: float, schedule: HuberSchedule
) -> torch.Tensor:
    """Return the delta of the Huber losses at these timesteps, float32 of shape (B,).

    Khrapov et al. 2024, "Improving Diffusion Models's Data-Corruption Resistance using Scheduled Pseudo-Huber Loss"
    (arXiv 2403.16728), section 4, as sd-scripts and diffusers have it: both schedules go from 1 at the cleanest
    timestep, where the loss is nearly quadratic, to `delta` at the noisiest. "exponential": `delta^(t / T)`. "snr":
    `(1 - delta) / (1 + sigma)^2 + delta` with `sigma = snr^-1/2`, which is infinite at zero terminal SNR: there, it is
    `delta`.
    """
    if schedule == "exponential":
        return (timesteps_B.float() * (math.log(delta) / process.num_timesteps)).exp()
    if schedule == "snr":
        return (1.0 - delta) / (1.0 + process.snr(timesteps_B).rsqrt()).square() + delta
    return torch.full(timesteps_B.shape, delta, dtype=torch.float32, device=timesteps_B.device)
