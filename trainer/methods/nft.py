"""DiffusionNFT and AWM: the model learns from its own finished images, newly noised, by their rewards.

For an accumulation group of the loader an old model, a copy of the trained weights that follows them, samples images
with any sampler. Each optimizer step then trains on all of them: a micro-batch is one chunk of images at random
timesteps, in random order. No state of the denoising loop and no log-probability is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.data.conditioning import SizeConditioning
from modules.diffusion.process import NoiseProcess
from modules.diffusion.timesteps.drawing import BatchPosition
from modules.objectives.forward_policy import (
    matching_log_ratios,
    negative_aware_losses,
    optimality,
    prediction_gaps,
)
from modules.objectives.methods import nft as settings
from modules.objectives.policy_losses import approx_kl, clip_fraction, clipped_surrogate
from modules.objectives.rollout_fields import size_of
from modules.rewards.advantage import combine_advantages, group_advantages, untrained_share
from modules.rewards.composite import CompositeReward
from modules.sampling.rollout import RolloutSettings
from modules.system.devices import move
from modules.system.errors import DarkroomError
from modules.system.ranks import ONLY_RANK
from trainer.methods.held_reference import HeldReference
from trainer.methods.noising import Noising, noising_of
from trainer.methods.policy_batches import PolicyBatch, PolicyRollout, policy_batches, trained_chunks
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod
from trainer.methods.rollout_images import sample_to_train
from trainer.methods.rollouts import NOTHING_TO_LEARN, Sampling, accumulation_groups, encode_prompts


@dataclass(eq=False)
class Nft:
    """The method. `old` is the model that samples.

    In a trial, for the dry run, nothing is reported, and the old model stays as it is.
    """

    reward: CompositeReward
    sampling: Sampling
    chosen: settings.Nft
    noising: Noising
    old: HeldReference
    is_trial: bool = False
    _rollout: PolicyRollout | None = field(default=None, init=False)
    _has_warned: bool = field(default=False, init=False)

    def prepare(self, context: StepContext) -> None:
        """Copy the weights of the old model. Raises DarkroomError if the loss of the model is not defined."""
        if self.chosen.objective == "negative_aware":
            require_predicted_images(context.family.process)
        self.old.prepare(context)

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[PolicyBatch]:
        """Sample images for each accumulation group, and yield the micro-batches of every step that trains on them."""
        rank = ONLY_RANK if self.is_trial else context.ranks.rank
        for group in accumulation_groups(loader):
            if self._rollout is None or self._rollout.first_step != group[0].step:
                self._rollout = None  # frees its memory
                self._rollout = self._sample(group, context)
            for update in range(self.chosen.updates_per_rollout):
                yield from policy_batches(
                    self._rollout,
                    group,
                    self.sampling.size,
                    inner_epoch=update,
                    run_seed=context.run_seed,
                    rank=rank,
                )

    def loss(self, batch: PolicyBatch, context: StepContext) -> StepLoss:
        """Return the loss of a chunk of images at random timesteps, and the distance from the original model.

        The other models come first, so that no graph through the trained weights is alive while they are exchanged.
        """
        family, process, chosen = context.family, context.family.process, self.chosen
        clean_BCHW = move(batch.chunk.states_BCHW[self.sampling.loop.num_steps], context.device)
        position = BatchPosition(batch.step, batch.micro_batch, len(clean_BCHW))
        timesteps_B, noise = self.noising.draw(clean_BCHW, position, context)
        noisy_BCHW = process.add_noise(clean_BCHW, noise.input_BCHW, timesteps_B)

        def predict() -> torch.Tensor:
            texts, _ = encode_prompts(batch.prompts, context)
            whole = SizeConditioning.whole(batch.prompts.size)
            return family.predict(noisy_BCHW, timesteps_B, family.with_size_conditioning(texts, [whole] * len(texts)))

        with self.old.active(context):
            old_BCHW = predict()
        original_BCHW = None
        if chosen.kl_weight > 0:
            with context.prior():
                original_BCHW = predict()
        new_BCHW = predict()
        advantages_B = move(batch.chunk.advantages_B, context.device)
        metrics: dict[str, float | torch.Tensor] = dict(batch.metrics)
        if chosen.objective == "advantage_weighted":
            target_BCHW = process.target(clean_BCHW, noise.target_BCHW, timesteps_B)
            losses_B = self._matching_losses(new_BCHW, old_BCHW, target_BCHW, advantages_B, metrics)
        else:
            to_x0 = functools.partial(process.to_x0, noisy_BCHW, timesteps_B=timesteps_B)
            optimality_B = optimality(advantages_B, limit=chosen.advantage_clip)
            losses_B = chosen.advantage_clip * negative_aware_losses(
                clean_BCHW, to_x0(new_BCHW), to_x0(old_BCHW), optimality_B, beta=chosen.beta
            )
        if original_BCHW is not None:
            gaps_B = prediction_gaps(new_BCHW, original_BCHW)
            losses_B = losses_B + chosen.kl_weight * gaps_B
            metrics["kl"] = gaps_B.detach().mean()
        return StepLoss(
            loss=(losses_B * batch.loss_weights_B).mean(),
            num_samples=len(clean_BCHW) * batch.counts,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            # With AWM every image may be clipped, except by the model that sampled.
            zero_gradient_is_legal=batch.is_silent or (chosen.objective == "advantage_weighted" and batch.step > 0),
            metrics=metrics,
            num_images=len(clean_BCHW) if batch.is_first_use and batch.counts else 0,
        )

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return a rollout of two denoising steps and two images per prompt, as large as the others, and its loss."""
        loop = replace(self.sampling.loop, num_steps=2)
        sampling = replace(self.sampling, samples_per_prompt=2, loop=loop)
        chosen = self.chosen.model_copy(update={"timesteps_per_image": 1, "updates_per_rollout": 1})
        return {"sampling and training": replace(self, sampling=sampling, chosen=chosen, is_trial=True)}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the old model, and the rollout if the run is inside of it; an untrained one is sampled again."""
        state, rollout = self.old.state_dict(), self._rollout
        if rollout is None or not 0 < step - rollout.first_step < self.chosen.updates_per_rollout:
            return state
        return {**state, **rollout.to_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.old.load_state_dict(state)
        self._rollout = PolicyRollout.from_state(state) if "first_step" in state else None

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
            combination=self.chosen.reward_sum,
        )
        metrics = {**sampled.metrics(last), "equal_rewards": untrained_share(advantages, prompts)}
        passes = tuple(range(self.chosen.timesteps_per_image))
        rollout = PolicyRollout(
            first_step,
            tuple(trained_chunks(sampled, advantages, keeps_finished=True)),
            {batch.micro_batch: passes for batch in group},
            metrics,
        )
        if rollout.is_silent and not self._has_warned and not self.is_trial:
            self._has_warned = True
            context.emit(NOTHING_TO_LEARN)
        return rollout

    def _matching_losses(
        self,
        new_BCHW: torch.Tensor,
        old_BCHW: torch.Tensor,
        target_BCHW: torch.Tensor,
        advantages_B: torch.Tensor,
        metrics: dict[str, float | torch.Tensor],
    ) -> torch.Tensor:
        """Return the loss of AWM of each image, (B,), and add its metrics."""
        clip_range, limit = self.chosen.clip_range, self.chosen.advantage_clip
        log_ratios_B = matching_log_ratios(new_BCHW, old_BCHW, target_BCHW)
        metrics["ratio"] = log_ratios_B.detach().exp().mean()
        metrics["approx_kl"] = approx_kl(log_ratios_B)
        metrics["clip_fraction"] = clip_fraction(log_ratios_B, clip_range=clip_range)
        surrogate_B = clipped_surrogate(log_ratios_B, advantages_B.clamp(-limit, limit), clip_range=clip_range)
        return surrogate_B + self.chosen.sampling_kl_weight * prediction_gaps(new_BCHW, old_BCHW)


def require_predicted_images(process: NoiseProcess) -> None:
    """Raise DarkroomError for a process at whose last timestep a prediction leaves the image open."""
    last = torch.tensor([process.num_timesteps - 1])
    if process.prediction_type == "epsilon" and not process.snr(last).all():
        raise DarkroomError(
            "DiffusionNFT trains on predicted images, and a model that predicts epsilon with zero terminal SNR "
            "predicts none at its last timestep.",
            advice="Set the prediction type to v-prediction, turn zero terminal SNR off, or choose the objective AWM.",
        )


def build(chosen: settings.Nft, training: Training, reward: CompositeReward | None) -> Nft:
    """Return the method from its settings and the run's noise settings. Raises ValueError without a reward."""
    if reward is None:
        raise ValueError("DiffusionNFT needs a reward.")
    sides = size_of(chosen.size)
    return Nft(
        reward,
        Sampling(
            chosen.group_size,
            RolloutSettings(chosen.steps, chosen.guidance),
            size=Size(*sides) if sides else None,
            sampler=chosen.sampler,
        ),
        chosen,
        noising_of(training.noise),
        HeldReference(refresh_every=1, decay=functools.partial(settings.old_policy_decay, chosen.old_policy)),
    )
