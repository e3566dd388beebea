"""Policies on the forward process: a model learns from its own finished images, newly noised, by their rewards.

For an accumulation group of the loader an old model, a copy of the trained weights that follows them, samples images
with any sampler. Each optimizer step then trains on all of them: a micro-batch is one chunk of images at random
timesteps, in random order. No state of the denoising loop and no log-probability is needed. What is learned from them
is the objective's: DiffusionNFT and AWM (`nft.py`), or DGPO (`dgpo.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.conditioning import SizeConditioning
from modules.diffusion.timesteps.drawing import BatchPosition
from modules.objectives.forward_fields import old_policy_decay
from modules.objectives.forward_policy import prediction_gaps
from modules.objectives.methods.dgpo import Dgpo
from modules.objectives.methods.nft import Nft
from modules.objectives.policy_losses import approx_kl, clip_fraction
from modules.rewards.advantage import Combination, combine_advantages, group_advantages, untrained_share
from modules.rewards.composite import CompositeReward
from modules.sampling.rollout import RolloutSettings
from modules.system.devices import move
from modules.system.ranks import ONLY_RANK
from trainer.methods.held_reference import HeldReference
from trainer.methods.noising import Noising, noising_of
from trainer.methods.policy_batches import PolicyBatch, PolicyRollout, chunks_to_train, policy_batches
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod
from trainer.methods.rollout_images import sample_to_train
from trainer.methods.rollouts import NOTHING_TO_LEARN, Sampling, accumulation_groups, encode_prompts, sample_size
from trainer.ranks import ALONE

Metrics = dict[str, float | torch.Tensor]
Losses = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]


@dataclass(frozen=True, eq=False)
class NoisedChunk:
    """A pass of training: a chunk of B finished images at random timesteps, on the training device."""

    batch: PolicyBatch
    context: StepContext
    clean_BCHW: torch.Tensor
    noisy_BCHW: torch.Tensor
    timesteps_B: torch.Tensor
    target_BCHW: torch.Tensor
    advantages_B: torch.Tensor

    def predict(self) -> torch.Tensor:
        """Return the output of the model as it is now, (B, C, H, W), without guidance."""
        family, prompts = self.context.family, self.batch.prompts
        texts, _ = encode_prompts(prompts.captions, self.context)
        sizes = [SizeConditioning.whole(prompts.size)] * len(texts)
        return family.predict(self.noisy_BCHW, self.timesteps_B, family.with_size_conditioning(texts, sizes))


class ForwardObjective(Protocol):
    """How the images of a rollout enter the loss.

    `may_clip`: from the second step on, every image may be outside of the clip range, so that a step without a gradient
    is legal. `shares_noise`: the images of a prompt get the same noise and timestep.
    """

    @property
    def may_clip(self) -> bool: ...

    @property
    def shares_noise(self) -> bool: ...

    def prepare(self, context: StepContext) -> None:
        """Raise DarkroomError if the loss of the model is not defined."""
        ...

    def before_step(self, policy: ForwardPolicy, batches: Sequence[PolicyBatch], context: StepContext) -> Any:
        """Return the facts about a whole step that the losses of its micro-batches need; called before each step."""
        ...

    def losses(self, policy: ForwardPolicy, noised: NoisedChunk, known: Any, metrics: Metrics) -> Losses:
        """Return the loss of each image, (B,), the original model's outputs if there is a KL weight, and the trained
        one's; add its metrics.

        The other models come first, so that no graph through the trained weights is alive while they are exchanged.
        """
        ...


@dataclass(eq=False)
class ForwardPolicy:
    """The method. `old` is the model that samples, `passes_per_image` at how many timesteps a step trains on an image.

    In a trial, for the dry run, nothing is reported, and the old model stays as it is.
    """

    reward: CompositeReward
    sampling: Sampling
    objective: ForwardObjective
    noising: Noising
    old: HeldReference
    passes_per_image: int = 1
    updates_per_rollout: int = 1
    kl_weight: float = 0.0
    reward_sum: Combination = "advantages"
    is_trial: bool = False
    _rollout: PolicyRollout | None = field(default=None, init=False)
    _num_resumed: int = field(default=0, init=False)
    """The steps on the rollout that were made before the run was resumed."""
    _known: Any = field(default=None, init=False)
    _has_warned: bool = field(default=False, init=False)

    def prepare(self, context: StepContext) -> None:
        """Copy the weights of the old model. Raises DarkroomError if the loss of the model is not defined."""
        self.objective.prepare(context)
        self.old.prepare(context)

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[PolicyBatch]:
        """Sample images for each accumulation group, and yield the micro-batches of every step that trains on them."""
        rank = ONLY_RANK if self.is_trial else context.ranks.rank
        for group in accumulation_groups(loader):
            num_made, self._num_resumed = self._num_resumed, 0
            if self._rollout is None or self._rollout.first_step != group[0].step:
                self._rollout, num_made = None, 0  # frees its memory
                self._rollout = self._sample(group, context)
            for update in range(num_made, self.updates_per_rollout):
                of_step = list(
                    policy_batches(
                        self._rollout,
                        group,
                        self.sampling.size,
                        inner_epoch=update,
                        run_seed=context.run_seed,
                        rank=rank,
                    )
                )
                ranks = ALONE if self.is_trial else context.ranks
                self._known = self.objective.before_step(self, of_step, replace(context, ranks=ranks))
                yield from of_step

    def loss(self, batch: PolicyBatch, context: StepContext) -> StepLoss:
        """Return the loss of a chunk of images at random timesteps, and the distance from the original model."""
        metrics: Metrics = dict(batch.metrics)
        noised = self.noise_images(batch, context)
        losses_B, original_BCHW, new_BCHW = self.objective.losses(self, noised, self._known, metrics)
        if original_BCHW is not None:
            gaps_B = prediction_gaps(new_BCHW, original_BCHW)
            losses_B = losses_B + self.kl_weight * gaps_B
            metrics["kl"] = gaps_B.detach().mean()
        return StepLoss(
            loss=(losses_B * batch.loss_weights_B).mean(),
            num_samples=len(losses_B) * batch.counts,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            zero_gradient_is_legal=batch.is_silent or (self.objective.may_clip and batch.step > 0),
            metrics=metrics,
            num_images=len(losses_B) if batch.is_first_use and batch.counts else 0,
        )

    def noise_images(self, batch: PolicyBatch, context: StepContext) -> NoisedChunk:
        """Return the images of a micro-batch at their timesteps; the same each time."""
        process = context.family.process
        clean_BCHW = move(batch.chunk.states_BCHW[self.sampling.loop.num_steps], context.device)
        number = batch.micro_batch
        if self.objective.shares_noise:
            number = batch.chunk.micro_batch * self.passes_per_image + batch.number
        position = BatchPosition(batch.step, number, len(clean_BCHW))
        timesteps_B, noise = self.noising.draw(clean_BCHW, position, context)
        noisy_BCHW = process.add_noise(clean_BCHW, noise.input_BCHW, timesteps_B)
        target_BCHW = process.target(clean_BCHW, noise.target_BCHW, timesteps_B)
        advantages_B = move(batch.chunk.advantages_B, context.device)
        return NoisedChunk(batch, context, clean_BCHW, noisy_BCHW, timesteps_B, target_BCHW, advantages_B)

    def original(self, noised: NoisedChunk) -> torch.Tensor | None:
        """Return the outputs of the original model for the KL; None without a weight."""
        if self.kl_weight <= 0:
            return None
        with noised.context.prior():
            return noised.predict()

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return a rollout of two denoising steps and two images per prompt, as large as the others, and its loss."""
        loop = replace(self.sampling.loop, num_steps=2)
        sampling = replace(self.sampling, samples_per_prompt=2, loop=loop)
        trial = replace(self, sampling=sampling, passes_per_image=1, updates_per_rollout=1, is_trial=True)
        return {"sampling and training": trial}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the old model, and the rollout if the run is inside of it; an untrained one is sampled again."""
        state, rollout = self.old.state_dict(), self._rollout
        if rollout is None or not 0 < step - rollout.first_step < self.updates_per_rollout:
            return state
        return {**state, **rollout.to_state(), "num_made": step - rollout.first_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.old.load_state_dict(state)
        self._rollout = PolicyRollout.from_state(state) if "first_step" in state else None
        self._num_resumed = state.get("num_made", 0)

    def _sample(self, group: Sequence[Batch], context: StepContext) -> PolicyRollout:
        """Let the old model follow the trained one; return its images with their advantages."""
        first_step, last = group[0].step, self.sampling.loop.num_steps
        if not self.is_trial:
            self.old.at_step(first_step)
        with self.old.active(context):
            sampled = sample_to_train(
                group,
                context,
                self.sampling,
                self.reward,
                stored_states=lambda prompts: (last,),
                is_trial=self.is_trial,
            )
        prompts = sampled.prompt_numbers
        advantages = combine_advantages(
            sampled.scores,
            {model.name: model.weight for model in self.reward.reward_models},
            lambda name, scores: group_advantages(scores, prompts),
            combination=self.reward_sum,
        )
        metrics = {**sampled.metrics(last), "equal_rewards": untrained_share(advantages, prompts)}
        passes = tuple(range(self.passes_per_image))
        rollout = PolicyRollout(
            first_step,
            tuple(chunks_to_train(sampled, advantages, keeps_finished=True)),
            {batch.micro_batch: passes for batch in group},
            metrics,
        )
        if rollout.is_silent and not self._has_warned and not self.is_trial:
            self._has_warned = True
            context.emit(NOTHING_TO_LEARN)
        return rollout


def forward_policy(
    chosen: Dgpo | Nft, training: Training, reward: CompositeReward | None, objective: ForwardObjective
) -> ForwardPolicy:
    """Return a method from the settings that both have and from its objective. Raises ValueError without a reward."""
    if reward is None:
        raise ValueError("Policies need a reward.")
    loop = RolloutSettings(chosen.steps, chosen.guidance)
    return ForwardPolicy(
        reward,
        Sampling(chosen.group_size, loop, size=sample_size(chosen.size), sampler=chosen.sampler),
        objective,
        noising_of(training.noise),
        HeldReference(refresh_every=1, decay=partial(old_policy_decay, chosen.old_policy)),
        passes_per_image=chosen.timesteps_per_image,
        updates_per_rollout=chosen.updates_per_rollout,
        kl_weight=chosen.kl_weight,
        reward_sum=chosen.reward_sum,
    )


def add_ratio_metrics(metrics: Metrics, log_ratios_B: torch.Tensor, *, clip_range: float) -> None:
    """Add the metrics of log-ratios to the old model."""
    metrics["ratio"] = log_ratios_B.detach().exp().mean()
    metrics["approx_kl"] = approx_kl(log_ratios_B)
    metrics["clip_fraction"] = clip_fraction(log_ratios_B, clip_range=clip_range)
