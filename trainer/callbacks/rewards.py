"""The reward on images of fixed prompts and seeds, by the reward models that are followed and by the one held out."""

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
from modules.rewards.composite import CompositeReward
from modules.system.devices import Device, move
from trainer.callbacks.best import Search
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
    """Measures when it is due. A reward that is cheated rises while the one held out falls: that can end the run."""

    def __init__(
        self,
        settings: Reward,
        reward_models: RewardModels,
        prompts: Sequence[SamplePrompt],
        *,
        image_sampler: ImageSampler,
        evaluation: Evaluation,
        device: Device,
        desk: CommandDesk,
        emit: Callable[[Event], None],
        log: TensorBoardLog | None,
    ) -> None:
        """`prompts` are what is painted, one image each; where there are none, nothing is measured."""
        self._settings = settings
        self._reward_models = reward_models
        self._prompts = prompts
        self._image_sampler = image_sampler
        self._evaluation = evaluation
        self._device = device
        self._desk = desk
        self._emit = emit
        self._log = log
        shown = hashlib.blake2b(repr([p.model_dump() for p in prompts]).encode(), digest_size=12).hexdigest()
        self.search = Search(  # for the lowest of the reward's negative
            f"{shown} by {reward_models.identity}",
            early_stopping_patience=settings.early_stopping_patience,
            changed="The prompts or reward models of the reward's measurements have changed since the backup; what was "
            "measured before cannot be compared",
            emit=emit,
        )

    def at_start(self, counters: Counters) -> None:
        """Measure where the training begins, or what a stop had cut short where it goes on."""
        if self.search.is_owed or (counters.step == 0 and not self._settings.measure_every.is_never):
            self._measure(counters.step)

    def after_step(self, view: StepView) -> None:
        """Measure if it is due."""
        if self._settings.measure_every.is_due(view.before.moment, view.now.moment):
            self._measure(view.now.step)

    def dry_run_checks(self, small: DryRunState) -> list[DryRunCheck]:
        """Return the trial of the largest image, painted in one step and rated by every reward model."""
        if not self._prompts or self._settings.measure_every.is_never:
            return []
        advice = "Use smaller samples, or never measure the reward."
        return [DryRunCheck("measuring the reward", advice, self._try_out)]

    def _try_out(self) -> None:
        largest = max(self._prompts, key=lambda p: p.width_px * p.height_px * (2 if p.guidance > 1 else 1))
        with self._evaluation.active():
            [image] = self._image_sampler.sample([largest], on_step=self._desk.check, most_steps=1)
            for reward_model in self._all_reward_models():
                reward_model(self._as_image(image), [largest.prompt])

    def _measure(self, step: int) -> None:
        """Paint, rate, tell, and remember whether it was the best."""
        if not self._prompts:
            return
        self.search.is_owed = step > 0
        result = self._rated(step)
        rating = result.held_out if self._reward_models.held_out is not None else result.followed
        if step > 0:
            self.search.best = self.search.best.after(-rating if rating is not None else math.nan, step, counts=True)
        self.search.is_owed = False
        self._tell(result)

    def _rated(self, step: int) -> RewardMeasured:
        self._emit(PhaseChanged("sampling", f"painting {len(self._prompts)} images to measure the reward"))
        progress = SamplingProgress(sum(p.steps for p in self._prompts), self._desk, self._emit)
        ratings: dict[str, list[float]] = {}
        with self._evaluation.active():
            images = self._image_sampler.sample(self._prompts, on_step=progress.next)
            for prompt, image in zip(self._prompts, images, strict=True):
                self._desk.check()
                self._rate(self._as_image(image), prompt.prompt, ratings)
        means = {name: mean for name, values in ratings.items() if (mean := _mean(values)) is not None}
        followed, held_out = means.pop(_FOLLOWED, None), means.pop(_HELD_OUT, None)
        return RewardMeasured(
            step=step,
            num_images=len(images),
            followed=followed,
            held_out=held_out,
            held_out_by=self._reward_models.held_out.names[0] if self._reward_models.held_out is not None else "",
            by_reward_model=means,
        )

    def _rate(self, image_13PP: torch.Tensor, prompt: str, ratings: dict[str, list[float]]) -> None:
        """Add what each reward model says of an image, and the sums, to the ratings by name."""
        for total, reward_model in zip((_FOLLOWED, _HELD_OUT), self._all_reward_models(), strict=False):
            scores = reward_model(image_13PP, [prompt])
            for name, rating_B in {total: scores.total_B, **scores.by_name}.items():
                ratings.setdefault(name, []).append(rating_B.item())

    def _all_reward_models(self) -> tuple[CompositeReward, ...]:
        held_out = self._reward_models.held_out
        return (self._reward_models.followed,) if held_out is None else (self._reward_models.followed, held_out)

    def _as_image(self, image: Image.Image) -> torch.Tensor:
        unit_PP3 = torch.from_numpy(np.array(image, dtype=np.float32)) / 255
        return move(unit_PP3.permute(2, 0, 1)[None].contiguous(), self._device)

    def _tell(self, result: RewardMeasured) -> None:
        self._emit(replace(result, best_step=self.search.best.step))
        if self._log is None:
            return
        values = {"followed": result.followed, "held_out": result.held_out, **result.by_reward_model}
        for name, value in values.items():
            if value is not None:
                self._log.scalar(f"reward/measured/{name}", value, result.step)


_FOLLOWED, _HELD_OUT = "\0followed", "\0held out"  # beside the names of reward models, none of which begins so


def _mean(ratings: Sequence[float]) -> float | None:
    """Return the mean of the ratings that are numbers; None where no image could be rated."""
    told = [r for r in ratings if math.isfinite(r)]
    return math.fsum(told) / len(told) if told else None
