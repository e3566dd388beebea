"""Rollouts that branch: at some denoising steps several candidates for the next latents are compared (SPO).

Liang et al. 2024 (arXiv 2406.04314): from the same latents, K candidates are sampled for the next ones. The clean image
that each would lead to is predicted, so that it can be scored, and the rollout continues from a random one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.families.protocol import ModelFamily
from modules.sampling.ddim_step import DdimStep
from modules.sampling.denoising_loop import Predict
from modules.sampling.prediction import guided_prediction
from modules.sampling.rollout import (
    RolloutSettings,
    ddim_steps_of,
    decode_images,
    forget_casts,
    generators_of,
    noise_of,
)
from modules.system.devices import Device, move


@dataclass(frozen=True, eq=False)
class Branches:
    """The candidates compared at a denoising step of B images, on the offload device, float32.

    `before_BCHW` are the latents before it, `candidates_KBCHW` the latents of the K candidates after it.
    """

    before_BCHW: torch.Tensor
    candidates_KBCHW: torch.Tensor


def branching_steps(steps: Sequence[DdimStep], *, max_timestep: int) -> tuple[int, ...]:
    """Return the numbers of the steps whose candidates can be compared: up to a timestep, with fresh noise.

    Never the last one, after which no prediction follows.
    """
    return tuple(i for i, step in enumerate(steps[:-1]) if step.sigma > 0 and step.timestep <= max_timestep)


@torch.no_grad()
def branch_out(
    family: ModelFamily,
    conditioning: Conditioning,
    unconditional: Conditioning | None,
    *,
    seeds: Sequence[int],
    size: Size,
    settings: RolloutSettings,
    branching: Collection[int],
    num_candidates: int,
    device: Device,
    temp_device: Device,
    on_step: Callable[[], None],
    on_candidate: Callable[[int, torch.Tensor], None],
) -> tuple[dict[int, Branches], torch.Tensor]:
    """Sample one image per seed; return the branches by the number of their step, and the images (B, 3, P, P).

    `branching` are the numbers of the steps that branch. `on_candidate(step, images)` is called for each of their
    candidates in turn with the clean images in [0, 1] that they are predicted to lead to. Other arguments as of
    `roll_out`. Raises DarkroomError for settings that the model does not support.
    """
    steps = ddim_steps_of(family, settings)
    predict = guided_prediction(family, conditioning, unconditional, size=size, guidance=settings.guidance)
    generators = generators_of(seeds)
    latents_BCHW = noise_of(generators, family.spec, size, device)
    branches: dict[int, Branches] = {}
    output_BCHW: torch.Tensor | None = None
    for index, step in enumerate(steps):
        on_step()
        if output_BCHW is None:
            output_BCHW = _output(predict, step, latents_BCHW)
        mean_BCHW = step.mean(output_BCHW, latents_BCHW)
        output_BCHW = None
        if index not in branching:
            fresh_BCHW = noise_of(generators, family.spec, size, device) if step.sigma > 0 else None
            latents_BCHW = step.next_latents(mean_BCHW, fresh_BCHW)
            continue
        candidates, outputs = [], []
        for _ in range(num_candidates):
            on_step()
            fresh_BCHW = noise_of(generators, family.spec, size, device)
            candidates.append(step.next_latents(mean_BCHW, fresh_BCHW))
            outputs.append(_output(predict, steps[index + 1], candidates[-1]))
            clean_BCHW, _ = steps[index + 1].clean_and_noise(outputs[-1], candidates[-1])
            images_B3PP = decode_images(family, clean_BCHW, conditioning, train_device=device, temp_device=temp_device)
            on_candidate(index, images_B3PP)
        branches[index] = Branches(move(latents_BCHW, temp_device), move(torch.stack(candidates), temp_device))
        picked = [int(torch.randint(num_candidates, (), generator=generator)) for generator in generators]
        latents_BCHW = torch.stack([candidates[k][row] for row, k in enumerate(picked)])
        output_BCHW = torch.stack([outputs[k][row] for row, k in enumerate(picked)])
    on_step()
    images_B3PP = decode_images(family, latents_BCHW, conditioning, train_device=device, temp_device=temp_device)
    forget_casts()
    return branches, images_B3PP


def _output(predict: Predict, step: DdimStep, latents_BCHW: torch.Tensor) -> torch.Tensor:
    timestep = torch.full((), step.timestep, dtype=torch.int64, device=latents_BCHW.device)
    return predict(latents_BCHW, timestep)
