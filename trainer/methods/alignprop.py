"""AlignProp: the model samples images, and the gradient of a reward is backpropagated through the last denoising steps.

Prabhudesai et al. 2023 (arXiv 2310.03739). With a given probability a step trains on the reward, otherwise it is a
normal denoising step, which keeps the model close to its training images. The prompts are the batch's captions, at the
batch's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.objectives.methods import alignprop as settings
from modules.objectives.policy_losses import num_scored, reward_loss
from modules.rewards.composite import CompositeReward, Scores
from modules.sampling.rollout import Rollout, RolloutSettings, roll_out
from modules.sampling.step_selection import Truncation, truncation_of
from modules.system.seeds import derive_seed
from trainer.methods.denoise import Denoise, denoise_of
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod

_SEEDS = 2**63  # the number of different seeds of `derive_seed`


@dataclass(frozen=True, slots=True)
class RewardLoss:
    """The loss of a reward: "mean", "target" or "hinge", the target of the last two, and a factor."""

    kind: Literal["mean", "target", "hinge"] = "mean"
    target: float = 10.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class AlignProp:
    """Trains on `reward` with `probability` per step, and by `denoise` otherwise."""

    reward: CompositeReward
    rollout: RolloutSettings
    truncation: Truncation
    reward_loss: RewardLoss
    probability: float
    denoise: Denoise

    def prepare(self, context: StepContext) -> None:
        """Raise DarkroomError for a reward that is not differentiable, naming it, or for an undefined weighting."""
        if self.probability > 0:
            self.reward.require_gradient()
        if self.probability < 1:
            self.denoise.prepare(context)

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[Batch]:
        """Yield the loader's batches unchanged."""
        yield from loader

    def loss(self, batch: Batch, context: StepContext) -> StepLoss:
        """Return the loss of images sampled for the batch's captions, or the denoising loss of its own images.

        All micro-batches of an optimizer step use the same of the two.
        """
        # A probability of 1 includes every seed, a probability of 0 none.
        if derive_seed(context.run_seed, "alignprop", batch.step) >= self.probability * _SEEDS:
            return self.denoise.loss(batch, context)
        rollout = self._sample(batch, context)
        scores = self.reward(rollout.images_B3PP, batch.captions)
        settings = self.reward_loss
        is_scored = num_scored(scores.total_B) > 0
        return StepLoss(
            loss=reward_loss(
                scores.total_B,
                loss=settings.kind,
                target=settings.target,
                weight=settings.weight,
                weights_B=batch.loss_weights_B,
            ),
            num_samples=batch.num_counted,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            zero_gradient_is_legal=settings.kind == "hinge" or not is_scored,
            metrics=_metrics(scores) if is_scored else {},
        )

    def _sample(self, batch: Batch, context: StepContext) -> Rollout:
        seed_parts = (batch.step, batch.micro_batch)
        width_px, height_px = map(context.family.spec.latents.px, reversed(batch.latents_BCHW.shape[-2:]))
        # Encoded together, so that the embedding of the empty prompt is as long as the embeddings of the captions. Of
        # several processes each takes its rows of the micro-batch.
        captions = batch.padded_like or batch.captions
        texts, first = context.encode([*captions, ""]), batch.first_row
        rows = range(first, first + batch.num_samples)
        return roll_out(
            context.family,
            texts.select(rows),
            texts.select([len(captions)]),
            seeds=[derive_seed(context.run_seed, "rollout", *seed_parts, row) for row in rows],
            size=Size(width_px, height_px),
            settings=self.rollout,
            gradient_steps=self.truncation.draw(derive_seed(context.run_seed, "truncation", *seed_parts)),
            device=context.device,
            temp_device=context.temp_device,
            on_step=context.check,
        )

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return the branches of a step; the reward's with the largest number of backprop steps."""
        branches: dict[str, TrainingMethod] = {}
        if self.probability > 0:
            longest = Truncation(self.truncation.highest, self.truncation.highest)
            branches["reward"] = replace(self, probability=1.0, truncation=longest)
        if self.probability < 1:
            branches |= self.denoise.branches()
        return branches

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the state of the denoising method: random numbers follow from the seed and the step."""
        return self.denoise.state_dict(step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the denoising method."""
        self.denoise.load_state_dict(state)


def _metrics(scores: Scores) -> dict[str, float]:
    """Return the mean reward, in total and by scorer, over the images that could be scored."""
    means = [scores.total_B, *scores.by_name.values()]
    values = torch.stack([m.detach().float().nanmean() for m in means]).tolist()  # one device synchronization
    names = ["reward", *(f"reward/{name}" for name in scores.by_name)]
    return {name: value for name, value in zip(names, values, strict=True) if not math.isnan(value)}


def build(chosen: settings.AlignProp, training: Training, reward: CompositeReward | None) -> AlignProp:
    """Return the method from its settings; its denoising steps use the run's loss settings."""
    if reward is None:
        raise ValueError("AlignProp needs a reward.")
    return AlignProp(
        reward,
        RolloutSettings(chosen.steps, chosen.guidance),
        truncation_of(
            chosen.gradient_truncation,
            backprop_steps=chosen.backprop_steps,
            backprop_steps_min=chosen.backprop_steps_min,
        ),
        RewardLoss(chosen.loss, chosen.target_reward, chosen.weight),
        chosen.probability,
        denoise_of(training),
    )
