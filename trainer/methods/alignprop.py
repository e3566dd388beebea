"""AlignProp: the model samples images, and the gradient of a reward is backpropagated through the last denoising steps.

Prabhudesai et al. 2023 (arXiv 2310.03739). With a given probability a step trains on the reward, otherwise it is a
normal denoising step, which keeps the model close to its training images. The prompts are the batch's captions, at the
batch's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.objectives.methods import alignprop as settings
from modules.objectives.policy_losses import num_scored, reward_loss
from modules.rewards.composite import CompositeReward, Scores
from modules.sampling.direct_align import align_directly, steps_between
from modules.sampling.rollout import RolloutSettings, roll_out, steps_of
from modules.sampling.step_selection import Truncation, truncation_of
from modules.system.devices import move
from modules.system.errors import DarkroomError
from modules.system.seeds import derive_seed
from trainer.methods.denoise import Denoise, denoise_of
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod
from trainer.methods.rollouts import encode_prompts

_SEEDS = 2**63  # the number of different seeds of `derive_seed`


@dataclass(frozen=True, slots=True)
class RewardLoss:
    """The loss of a reward: "mean", "target" or "hinge", the target of the last two, and a factor."""

    kind: Literal["mean", "target", "hinge"] = "mean"
    target: float = 10.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ControlWords:
    """Words put before the prompts of scored images: the reward is the score with the positive words minus the score
    with the negative ones (SRPO, Shen et al. 2025, arXiv 2509.06942, section 3.2). Without words it is the plain score.
    """

    positive: str = ""
    negative: str = ""

    def scores(self, reward: CompositeReward, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> Scores:
        """Return the scores of images, each as a difference if there are words."""
        if not self.positive.strip() and not self.negative.strip():
            return reward(images_B3PP, prompts)
        better, worse = (
            reward(images_B3PP, [f"{words.strip()}. {prompt}" if words.strip() else prompt for prompt in prompts])
            for words in (self.positive, self.negative)
        )
        differences = {name: better.by_name[name] - worse.by_name[name] for name in better.by_name}
        return Scores(better.total_B - worse.total_B, differences)


@dataclass(frozen=True, slots=True)
class AlignProp:
    """Trains on `reward` with `probability` per step, and by `denoise` otherwise.

    `timesteps` is the range of the single step of Direct-Align, in place of the `truncation`; None without it. With
    `uses_own_images` it noises the images of the batch, and samples none.
    """

    reward: CompositeReward
    rollout: RolloutSettings
    truncation: Truncation
    reward_loss: RewardLoss
    probability: float
    denoise: Denoise
    timesteps: tuple[float, float] | None = None
    words: ControlWords = ControlWords()
    uses_own_images: bool = False

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
        scores = self.words.scores(self.reward, self._sample(batch, context), batch.captions)
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

    def _sample(self, batch: Batch, context: StepContext) -> torch.Tensor:
        """Return an image for each caption of a batch, in [0, 1], (B, 3, P, P), with its graph."""
        seed_parts = (batch.step, batch.micro_batch)
        width_px, height_px = map(context.family.spec.latents.px, reversed(batch.latents_BCHW.shape[-2:]))
        # Of several processes each takes its rows of the micro-batch.
        texts, empty = encode_prompts(batch.padded_like or batch.captions, context)
        rows = range(batch.first_row, batch.first_row + batch.num_samples)
        size, last = Size(width_px, height_px), self.rollout.num_steps
        draw, clean_BCHW = derive_seed(context.run_seed, "truncation", *seed_parts), batch.latents_BCHW
        if not self.uses_own_images:
            rollout = roll_out(
                context.family,
                texts.select(rows),
                empty,
                seeds=[derive_seed(context.run_seed, "rollout", *seed_parts, row) for row in rows],
                size=size,
                settings=self.rollout,
                gradient_steps=0 if self.timesteps else self.truncation.draw(draw),
                device=context.device,
                temp_device=context.temp_device,
                on_step=context.check,
                stored_states=(last,) if self.timesteps else (),
                decodes=self.timesteps is None,  # the image of Direct-Align comes from its single step
            )
            if not self.timesteps:
                return rollout.images_B3PP
            clean_BCHW = rollout.states_BCHW[last]
        numbers = self._direct_steps(size, context)
        return align_directly(
            context.family,
            move(clean_BCHW.float(), context.device),
            texts.select(rows),
            empty,
            number=numbers[draw % len(numbers)],
            seeds=[derive_seed(context.run_seed, "known noise", *seed_parts, row) for row in rows],
            size=size,
            settings=self.rollout,
            device=context.device,
            temp_device=context.temp_device,
        )

    def _direct_steps(self, size: Size, context: StepContext) -> tuple[int, ...]:
        """Return the steps that Direct-Align trains. Raises DarkroomError if there are none."""
        lowest, highest = self.timesteps or (0.0, math.inf)
        numbers = steps_between(steps_of(context.family, self.rollout, size), lowest=lowest, highest=highest)
        if not numbers:
            raise DarkroomError(
                f"No denoising step is between the timesteps {lowest:g} and {highest:g}.",
                advice="Increase the denoising steps, or widen the range.",
            )
        return numbers

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
    is_direct = chosen.gradient_truncation == "direct"
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
        (chosen.min_timestep, chosen.max_timestep) if is_direct else None,
        ControlWords(chosen.positive_words, chosen.negative_words),
        uses_own_images=chosen.uses_own_images,
    )
