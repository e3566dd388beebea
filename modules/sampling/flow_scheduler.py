"""diffusers' schedulers for flow models behind the interface of those for DDPM, which the denoising loop uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import diffusers
import numpy as np
import torch

from modules.diffusion.process_spec import FlowConvention
from modules.sampling.registry import FlowScheduler


class FlowSteps:
    """The steps of a diffusers scheduler for a flow model, at the shift of one image size.

    Its `timesteps` are 1000 times the scheduler's sigmas. Those of diffusers' multistep schedulers are rounded to whole
    numbers, so that the model would read another noise level than that of its input.
    """

    init_noise_sigma = 1.0

    def __init__(
        self, record: FlowScheduler, config: Mapping[str, Any], convention: FlowConvention, shift: float
    ) -> None:
        """`config` is the model's own scheduler config, `shift` that of the process at the size of the image."""
        options = {**record.options, record.shift_option: shift}
        self.scheduler: Any = getattr(diffusers, record.scheduler).from_config(dict(config), **options)
        self.timesteps = torch.empty(0)
        self._num_levels = int(self.scheduler.config.num_train_timesteps)
        # diffusers' own grid ends at its smallest sigma, which is shifted already if the shift is constant.
        self._smallest = 1.0 / self._num_levels if convention.shift.depends_on_size else None
        self._is_even = convention.sample_grid == "even"
        self._has_grid = record.has_grid

    def set_timesteps(self, num_steps: int, device: torch.device | str | None = None) -> None:
        """Set the number of steps, and the device of the timesteps."""
        if num_steps == 1:  # the stretch to a terminal sigma would divide by 1 - the first sigma, which is 0
            self.scheduler.register_to_config(shift_terminal=None)
        last = 1.0 / num_steps if self._is_even else self._smallest
        options = {"sigmas": np.linspace(1.0, last, num_steps)} if self._has_grid and last is not None else {}
        self.scheduler.set_timesteps(num_steps, device=device, **options)
        # Else a scheduler looks the first timestep up, and begins at the second of two that are equal when rounded.
        self.scheduler.set_begin_index(0)
        sigmas = self.scheduler.sigmas[: len(self.scheduler.timesteps)]
        self.timesteps = (sigmas * self._num_levels).to(device)

    def scale_model_input(self, latents_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Return the latents: a flow model gets them as they are."""
        return latents_BCHW

    def step(self, output_BCHW: torch.Tensor, timestep: torch.Tensor, latents_BCHW: torch.Tensor) -> Any:
        """Return the scheduler's result of the next step; `prev_sample` are the latents after it."""
        return self.scheduler.step(output_BCHW, timestep, latents_BCHW)
