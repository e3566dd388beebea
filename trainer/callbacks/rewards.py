"""The reward of images sampled with fixed prompts and seeds, by the training reward models and the held-out one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from modules.config.sections.evaluation import SamplePrompt
from modules.config.sections.reward import Reward
from modules.rewards.composite import CompositeReward, diversity, saturation
from modules.system.devices import Device, move
from modules.system.problem import count
from trainer.callbacks.best import Search
from trainer.callbacks.guards import Guards
from trainer.callbacks.image_sampler import ImageSampler
from trainer.callbacks.sampling import SamplingProgress
from trainer.callbacks.tensorboard_log import TensorBoardLog
from trainer.commands import CommandDesk
from trainer.events import Event, PhaseChanged, RewardMeasured
from trainer.methods.reward_models import RewardModels
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters
from trainer.step.evaluation import Evaluation


class RewardCallback:
    """Measures the reward when it is due. With reward hacking the training reward rises while the held-out reward
    falls: early stopping can end the run then.
    """

    def __init__(
        self,
        settings: Reward,
        reward_models: RewardModels,
        prompts: Sequence[SamplePrompt],
        *,
        image_sampler: ImageSampler,
        evaluation: Evaluation,
        device: Device,
        guards: Guards,
        keep: Callable[[Counters], object],
        desk: CommandDesk,
        emit: Callable[[Event], None],
        log: TensorBoardLog | None,
    ) -> None:
        """One image is sampled per prompt; without prompts nothing is measured.

        `guards` get every measurement; `keep` saves the model if it is the best and should be kept.
        """
        self._settings = settings
        self._reward_models = reward_models
        self._prompts = prompts
        self._image_sampler = image_sampler
        self._evaluation = evaluation
        self._device = device
        self._guards = guards
        self._keep = keep
        self._desk = desk
        self._emit = emit
        self._log = log
        prompts_hash = hashlib.blake2b(repr([p.model_dump() for p in prompts]).encode(), digest_size=12).hexdigest()
        self.search = Search(  # for the lowest negated reward
            f"{prompts_hash} by {reward_models.identity}",
            early_stopping_patience=settings.early_stopping_patience,
            changed="The prompts or reward models of the reward evaluation have changed since the backup, so earlier "
            "rewards cannot be compared",
            emit=emit,
        )

    def at_start(self, counters: Counters) -> None:
        """Measure at the start of the training, or repeat a measurement that a stop interrupted."""
        if self.search.is_owed or (counters.step == 0 and not self._settings.measure_every.is_never):
            self._measure(counters)

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return whether it is due."""
        return self._settings.measure_every.is_due(before.moment, now.moment)

    def after_step(self, view: StepView) -> None:
        """Measure if it is due."""
        if self.is_due(view.before, view.now):
            self._measure(view.now)

    def dry_run_checks(self, state: DryRunState) -> list[DryRunCheck]:
        """Return the check of the largest image, sampled in one step and scored by every reward model."""
        if not self._prompts or self._settings.measure_every.is_never:
            return []
        advice = "Use smaller samples, or switch off the reward evaluation."
        return [DryRunCheck("measuring the reward", advice, self._try_out)]

    def _try_out(self) -> None:
        largest = max(self._prompts, key=lambda p: p.width_px * p.height_px * (2 if p.guidance > 1 else 1))
        with self._evaluation.active():
            [image] = self._image_sampler.sample([largest], on_step=self._desk.check, most_steps=1)
            for reward_model in self._all_reward_models():
                reward_model(self._as_image(image), [largest.prompt])

    def _measure(self, counters: Counters) -> None:
        """Sample the images, score them, report the result, and keep the model if it is the best."""
        if not self._prompts:
            return
        step = counters.step
        self.search.is_owed = step > 0
        result = self._score_images(step)
        reward = result.held_out if self._reward_models.held_out is not None else result.followed
        best = self.search.best
        if step > 0:
            best = best.after(-reward if reward is not None else math.nan, step, counts=True)
        self._report(replace(result, best_step=best.step))
        if best.step == step > 0 and self._settings.keep_best:
            self._keep(counters)
        self.search.best = best
        self._guards.after_measurement(result, best.measured_on)
        self.search.is_owed = False

    def _score_images(self, step: int) -> RewardMeasured:
        self._emit(PhaseChanged("sampling", f"{count(len(self._prompts), 'image')} to measure the reward"))
        progress = SamplingProgress(sum(p.steps for p in self._prompts), self._desk.check, self._emit)
        scores: dict[str, list[float]] = {}
        with self._evaluation.active():
            images = self._image_sampler.sample(self._prompts, on_step=progress.next)
            for prompt, image in zip(self._prompts, images, strict=True):
                self._desk.check()
                self._score(self._as_image(image), prompt.prompt, scores)
        means = {name: mean for name, values in scores.items() if (mean := _mean(values)) is not None}
        followed, held_out = means.pop(_FOLLOWED, None), means.pop(_HELD_OUT, None)
        pixels = [np.asarray(image) for image in images]
        return RewardMeasured(
            step=step,
            num_images=len(images),
            followed=followed,
            held_out=held_out,
            held_out_by=self._reward_models.held_out.names[0] if self._reward_models.held_out is not None else "",
            by_reward_model=means,
            diversity=diversity(pixels, [p.prompt for p in self._prompts]),
            saturation=saturation(pixels),
        )

    def _score(self, image_13PP: torch.Tensor, prompt: str, scores: dict[str, list[float]]) -> None:
        """Append the score of each reward model for an image, and the sums, to the scores by name."""
        for total, reward_model in zip((_FOLLOWED, _HELD_OUT), self._all_reward_models(), strict=False):
            rewards = reward_model(image_13PP, [prompt])
            for name, score_B in {total: rewards.complete_totals, **rewards.by_name}.items():
                scores.setdefault(name, []).append(score_B.item())

    def _all_reward_models(self) -> tuple[CompositeReward, ...]:
        held_out = self._reward_models.held_out
        return (self._reward_models.followed,) if held_out is None else (self._reward_models.followed, held_out)

    def _as_image(self, image: Image.Image) -> torch.Tensor:
        unit_PP3 = torch.from_numpy(np.array(image, dtype=np.float32)) / 255
        return move(unit_PP3.permute(2, 0, 1)[None].contiguous(), self._device)

    def _report(self, result: RewardMeasured) -> None:
        self._emit(result)
        if self._log is None:
            return
        values = {"followed": result.followed, "held_out": result.held_out, **result.by_reward_model}
        values |= {"diversity": result.diversity, "saturation": result.saturation}
        for name, value in values.items():
            if value is not None:
                self._log.scalar(f"reward/measured/{name}", value, result.step)


_FOLLOWED, _HELD_OUT = "\0followed", "\0held out"  # cannot be the names of reward models


def _mean(scores: Sequence[float]) -> float | None:
    """Return the mean of the finite scores; None if no image could be scored."""
    finite = [s for s in scores if math.isfinite(s)]
    return math.fsum(finite) / len(finite) if finite else None
