"""The newest rollout as image files: small copies of its images, for the window and other programs."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from modules.data.batch import Batch
from modules.rewards.composite import CompositeReward
from modules.system.atomic import atomic_folder
from modules.system.devices import CPU, move
from modules.system.file_errors import plain_reason
from trainer.events import PhaseChanged, WarningRaised
from trainer.methods.protocol import StepContext
from trainer.methods.rollouts import Chunk, PromptBatch, SampledGroup, Sampling, sample_group
from trainer.ranks import Ranks
from trainer.rollout_events import Mark, RolloutSampled, SampledImage

_SIDE_PX = 256
_MAX_IMAGES = 64  # of a rollout, whole prompts; at least one
_MAX_ROLLOUTS = 3  # that are kept

Extremes = tuple[int, int]
"""The numbers of the best and the worst image of a prompt."""


def rollouts_dir(run_dir: Path) -> Path:
    """Return the folder of the newest rollouts of a run."""
    return run_dir / "rollouts"


def as_images(images_B3PP: torch.Tensor) -> list[Image.Image]:
    """Return images in [0, 1] as image objects."""
    bytes_B3PP = (move(images_B3PP.detach(), CPU).float().clamp(0, 1) * 255).round().to(torch.uint8)
    return [Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy())) for image in bytes_B3PP]


@dataclass(frozen=True, slots=True)
class _Small:
    """A small image, its prompt, reward, and scores by reward model."""

    sample: int
    image: Image.Image
    prompt: str
    reward: float
    scores: Mapping[str, float]


class RolloutImages:
    """Collects small copies of the images of a rollout while it is sampled, and reports them when it is complete."""

    def __init__(self, samples_per_prompt: int) -> None:
        self._most_prompts = max(1, _MAX_IMAGES // samples_per_prompt)
        self._by_prompt: dict[tuple[int, int], list[_Small]] = {}  # by the batch's number and the row in it

    def add(self, chunk: Chunk, images_B3PP: torch.Tensor) -> None:
        """Add the images of a chunk (`OnImages`); prompts beyond the limit are left out."""
        for row, prompt in enumerate(chunk.prompts.captions):
            key = (chunk.prompts.micro_batch, row)
            if key not in self._by_prompt and len(self._by_prompt) == self._most_prompts:
                return
            [image] = as_images(images_B3PP[row : row + 1])
            image.thumbnail((_SIDE_PX, _SIDE_PX))
            scores = {name: values[row] for name, values in chunk.scores.items()}
            self._by_prompt.setdefault(key, []).append(_Small(chunk.sample, image, prompt, chunk.rewards[row], scores))

    def report(self, context: StepContext, step: int, chosen: Sequence[Extremes | None] | None = None) -> None:
        """Write the images into the run's folder and emit them, with the best and the worst of each prompt marked.

        `chosen` has the numbers of both for each prompt of the rollout, None for a prompt without; by default they are
        the images with the highest and the lowest reward. If the files cannot be written, that is a warning and the run
        continues. Of several processes, which all call it, the main one writes the images of all.
        """
        if not context.ranks.rank.is_alone:
            self._gather(context.ranks)
        if not context.ranks.rank.is_main:
            return
        folder = rollouts_dir(context.run_dir) / f"step-{step:08d}"
        images = []
        try:
            with atomic_folder(folder) as unfinished:
                for number, samples in enumerate(self._by_prompt.values()):
                    extremes = _by_reward(samples) if chosen is None else chosen[number]
                    for sample, small in enumerate(samples):
                        name = f"{number + 1:03d}-{sample + 1:02d}.png"
                        small.image.save(unfinished / name, format="PNG")
                        images.append(_event_of(small, folder / name, _mark(sample, extremes)))
            _remove_old(folder)
        except OSError as error:
            advice = "Training continues. Check the disk and the folder's permissions."
            context.emit(
                WarningRaised(
                    f"The images of the rollout could not be written to {folder}: {plain_reason(error)}.", advice
                )
            )
            return
        context.emit(RolloutSampled(step, tuple(images)))

    def _gather(self, ranks: Ranks) -> None:
        """Collect the images of all processes, in the order in which one process would have sampled them."""
        shares = ranks.gather(self._by_prompt)
        keys = sorted({key for share in shares for key in share})[: self._most_prompts]
        by_key = {key: [small for share in shares for small in share.get(key, [])] for key in keys}
        self._by_prompt = {key: sorted(samples, key=lambda small: small.sample) for key, samples in by_key.items()}


def sample_to_train(
    group: Sequence[Batch],
    context: StepContext,
    sampling: Sampling,
    reward: CompositeReward,
    *,
    stored_states: Callable[[PromptBatch], Collection[int]],
    stored_means: Callable[[PromptBatch], Collection[int]] = lambda prompts: (),
    is_trial: bool,
) -> SampledGroup:
    """Sample and score images for an accumulation group, and report them, with the phase of the run.

    Arguments as of `sample_group`. In a trial, for the dry run, nothing is reported, and no other process takes part.
    """
    if is_trial:
        return sample_group(group, context, sampling, reward, stored_states=stored_states, stored_means=stored_means)
    images = RolloutImages(sampling.samples_per_prompt)
    num_images = sum(batch.num_samples for batch in group) * sampling.samples_per_prompt
    context.emit(PhaseChanged("sampling", f"{num_images} images to train on"))
    sampled = sample_group(
        group,
        context,
        sampling,
        reward,
        stored_states=stored_states,
        stored_means=stored_means,
        on_images=images.add,
        ranks=context.ranks,
    )
    images.report(context, sampled.first_step)
    context.emit(PhaseChanged("training"))
    return sampled


def _by_reward(samples: Sequence[_Small]) -> Extremes | None:
    """Return the numbers of the best and the worst sample; None if their rewards are equal, or missing."""
    scored = [number for number, small in enumerate(samples) if math.isfinite(small.reward)]
    best = max(scored, key=lambda n: samples[n].reward, default=0)
    worst = min(scored, key=lambda n: samples[n].reward, default=0)
    return (best, worst) if scored and samples[best].reward > samples[worst].reward else None


def _mark(sample: int, extremes: Extremes | None) -> Mark:
    if extremes is None or sample not in extremes:
        return ""
    return "best" if sample == extremes[0] else "worst"


def _event_of(small: _Small, path: Path, mark: Mark) -> SampledImage:
    return SampledImage(
        str(path),
        small.prompt,
        small.reward if math.isfinite(small.reward) else None,
        {name: score for name, score in small.scores.items() if math.isfinite(score)},
        mark,
    )


def _remove_old(newest: Path) -> None:
    """Remove all but the newest rollouts, and rollouts of later steps, which a run left that was resumed earlier."""
    others = sorted(path for path in newest.parent.glob("step-*") if path.is_dir() and path != newest)
    later = [path for path in others if path.name > newest.name]
    earlier = [path for path in others if path.name < newest.name]
    for path in (*later, *earlier[: -(_MAX_ROLLOUTS - 1)]):
        shutil.rmtree(path, ignore_errors=True)
