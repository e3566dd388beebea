"""Noise levels of imported configs of kohya's scripts, which draw them as diffusers' trainers."""

from __future__ import annotations

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.training_utils import compute_density_for_timestep_sampling

from modules.config.codec import decode
from modules.config.imports.kohya_settings import tree_of_kohya
from modules.config.sections.noise import timestep_sampling_of

N = 1000
COUNT = 40_000


@pytest.mark.parametrize("scheme", ["none", "logit_normal", "mode", "cosmap"])
@pytest.mark.parametrize(("mean", "shift"), [(-1.0, None), (0.5, 1.0), (1.0, 2.2)])
def test_noise_levels_of_the_table_are_those_of_diffusers(scheme: str, mean: float, shift: float | None) -> None:
    """A row of the scheduler's shifted table, whose first row is pure noise: `timestep_sampling = sigma`.

    They were drawn without the shift, and `logit_mean` with its sign turned round.
    """
    given = {"network_dim": 4, "model_type": "flux", "weighting_scheme": scheme, "logit_mean": mean}
    given |= {"logit_std": 0.7, "mode_scale": 1.1} | ({} if shift is None else {"discrete_flow_shift": shift})
    noise = decode(tree_of_kohya(given, [])).config.training.noise
    torch.manual_seed(0)
    rows = compute_density_for_timestep_sampling(scheme, COUNT, mean, 0.7, 1.1)
    table = FlowMatchEulerDiscreteScheduler(shift=3.0 if shift is None else shift).sigmas  # sd-scripts' own shift
    theirs = table[(rows * N).long().clamp(max=N - 1)]
    ours = timestep_sampling_of(noise).cumulative(num_timesteps=N)
    for edge in range(50, N, 50):
        share = (theirs <= edge / N).float().mean().item()
        assert ours[edge] == pytest.approx(share, abs=0.015)
