"""Pairs of sampled images, the best and the worst of each prompt, chosen by reward models or by a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.data.conditioning import Conditioning, SizeConditioning
from modules.diffusion.timesteps.drawing import BatchPosition
from modules.objectives.methods import online_dpo as settings
from modules.rewards.advantage import Combination
from modules.rewards.composite import CompositeReward
from modules.sampling.registry import SAMPLERS
from modules.sampling.rollout import RolloutSettings
from modules.sampling.step_selection import RandomShare
from modules.system.devices import move
from modules.system.problem import count
from trainer.events import PhaseChanged
from trainer.methods import choosing
from trainer.methods.automatic_beta import AutomaticBeta
from trainer.methods.dpo import LatentPairs, PairLoss, pair_losses
from trainer.methods.held_reference import HeldReference
from trainer.methods.noising import Noising, noising_of
from trainer.methods.online_dpo import OnlineDpo, PairBatch
from trainer.methods.pair_rollout import Candidates, PairRollout, best_and_worst, pairs_of
from trainer.methods.protocol import StepContext
from trainer.methods.rollout_images import RolloutImages
from trainer.methods.rollouts import (
    Chunk,
    SampledGroup,
    Sampling,
    encode_prompts,
    fingerprint_of,
    sample_group,
    sample_size,
)
from trainer.methods.step_pairs import StepPairs, StepPairSettings
from trainer.ranks import ALONE
from trainer.run_folder.choices import Request


@dataclass(eq=False)
class ImagePairs:
    """Samples K images of each prompt with any sampler, and trains by the loss of Diffusion-DPO, without guidance.

    If a person chooses, `wait()` returns after a moment, when the folder of choices is looked at again; None if reward
    models do. With `keeps_noise` the noise that each image was sampled from is kept with its pair, and is the noise of
    the loss. `beta` is the beta of each step in place of the loss's. In a trial, for the dry run, the first two images
    of a prompt are the pair, and nothing is reported.
    """

    reward: CompositeReward
    sampling: Sampling
    reward_sum: Combination
    pair_loss: PairLoss
    noising: Noising
    wait: Callable[[], None] | None = None
    keeps_noise: bool = False
    keeps_seeds: bool = True
    beta: AutomaticBeta | None = None
    is_trial: bool = False
    _waiting: Candidates | None = field(default=None, init=False)  # for choices

    @property
    def size(self) -> Size | None:
        """The size of the images; None for the size of the images whose captions are the prompts."""
        return self.sampling.size

    @property
    def is_costly(self) -> bool:
        """Whether a person has made the choices of a rollout, so that it is kept before any step has trained on it."""
        return self.wait is not None

    def prepare(self, context: StepContext) -> None:
        """Nothing to prepare."""

    def sample(self, group: Sequence[Batch], context: StepContext) -> PairRollout:
        """Sample the images of an accumulation group and return their pairs. Raises StopRequested, also in a wait."""
        sizes = [batch.num_samples for batch in group]
        if self.wait is not None:
            return self._let_person_choose(group, sizes, self.wait, context)
        images = RolloutImages(self.sampling.samples_per_prompt)
        candidates, sampled = self._sample(group, context, images.add)
        if self.is_trial:
            return pairs_of(candidates, [(0, 1)] * sum(sizes), sizes)
        chosen = best_and_worst(sampled, self.reward, self.reward_sum)
        images.report(context, candidates.first_step, chosen)
        return pairs_of(candidates, chosen, sizes)

    def losses(
        self, batch: PairBatch, context: StepContext, reference: Callable[[], AbstractContextManager[None]]
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the loss of each pair, each at its own random timestep, and the metrics."""
        chosen_BCHW, rejected_BCHW, *noises = move(batch.latents_BNCHW, context.device).unbind(1)

        def conditioning() -> Conditioning:
            texts, _ = encode_prompts(batch.prompts.captions, context)
            whole = SizeConditioning.whole(batch.prompts.size)
            return context.family.with_size_conditioning(texts, [whole] * len(texts))

        position = BatchPosition(batch.step, batch.micro_batch, len(chosen_BCHW))
        pair_loss = self.pair_loss if self.beta is None else replace(self.pair_loss, beta=self.beta.value)
        losses = pair_losses(
            LatentPairs(chosen_BCHW, rejected_BCHW, conditioning, position, torch.cat(noises) if noises else None),
            context,
            pair_loss=pair_loss,
            noising=self.noising,
            reference=reference,
        )
        if self.beta is None:
            return losses.losses_B, losses.metrics
        self.beta.add(
            losses.margins_B,
            step=batch.step,
            is_last=batch.is_last_micro_batch,
            counts=batch.counts and not batch.is_silent,
            context=context,
        )
        return losses.losses_B, {**losses.metrics, "beta": torch.tensor(pair_loss.beta)}

    def trial(self) -> ImagePairs:
        """Return these with two denoising steps and two images per prompt, as large as the others."""
        loop = replace(self.sampling.loop, num_steps=2)
        sampling = replace(self.sampling, samples_per_prompt=2, loop=loop)
        return ImagePairs(
            self.reward,
            sampling,
            self.reward_sum,
            self.pair_loss,
            self.noising,
            keeps_noise=self.keeps_noise,
            is_trial=True,
        )

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the images that wait for choices before a step, and the state of beta."""
        state = {} if self.beta is None else self.beta.state_dict()
        is_waiting = self._waiting is not None and self._waiting.first_step == step
        return {**state, **self._waiting.to_state()} if is_waiting and self._waiting is not None else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._waiting = Candidates.from_state(state) if "candidates" in state else None
        if self.beta is not None:
            self.beta.load_state_dict(state)

    def _let_person_choose(
        self, group: Sequence[Batch], sizes: Sequence[int], wait: Callable[[], None], context: StepContext
    ) -> PairRollout:
        """Sample, or restore what a resumed run has sampled, and return the pairs when all choices are made."""
        first_step = group[0].step
        fingerprint = fingerprint_of(group, self.size)
        requests, images = self._restored_requests(first_step, fingerprint, context), None
        if requests is None:
            shown = choosing.Candidates(keeps_seeds=self.keeps_seeds)
            images = RolloutImages(self.sampling.samples_per_prompt)
            candidates, _ = self._sample(group, context, images.add, shown.add)
            requests = shown.ask(context.run_dir, first_step)
            names = tuple(request.name for request in requests)
            self._waiting = replace(candidates, requests=names, fingerprint=fingerprint)
        assert self._waiting is not None
        chosen = choosing.wait_for_choices(requests, first_step, context, wait=wait)
        if images is not None:
            images.report(context, first_step, chosen)
        rollout = pairs_of(self._waiting, chosen, sizes)
        self._waiting = None
        return rollout

    def _restored_requests(self, first_step: int, fingerprint: str, context: StepContext) -> list[Request] | None:
        """Return the requests that a resumed run still waits for; None if it has to sample, or they were removed."""
        waiting = self._waiting
        if waiting is not None and (waiting.first_step, waiting.fingerprint) == (first_step, fingerprint):
            return choosing.requests_of(context.run_dir, waiting.requests)
        self._waiting = None
        return None

    def _sample(
        self, group: Sequence[Batch], context: StepContext, *on_images: Callable[[Chunk, torch.Tensor], None]
    ) -> tuple[Candidates, SampledGroup]:
        """Sample and score the images of an accumulation group."""

        def each(chunk: Chunk, images_B3PP: torch.Tensor) -> None:
            for collect in on_images:
                collect(chunk, images_B3PP)

        if not self.is_trial:
            num_images = sum(batch.num_samples for batch in group) * self.sampling.samples_per_prompt
            context.emit(PhaseChanged("sampling", f"{count(num_images, 'image')} to compare"))
        last = self.sampling.loop.num_steps
        sampled = sample_group(
            group,
            context,
            self.sampling,
            self.reward,
            stored_states=lambda prompts: (0, last) if self.keeps_noise else (last,),
            on_images=None if self.is_trial else each,
            ranks=ALONE if self.is_trial or self.wait is not None else context.ranks,
        )
        latents = tuple(sampled.samples_of_prompts(last))
        noises = tuple(sampled.samples_of_prompts(0)) if self.keeps_noise else ()
        return Candidates(sampled.first_step, latents, sampled.metrics(last), noises_KCHW=noises), sampled


# Building online DPO from its settings.


def build(chosen: settings.OnlineDpo, training: Training, reward: CompositeReward | None) -> OnlineDpo:
    """Return the method from its settings and the run's noise settings; a person needs no reward."""
    if reward is None and chosen.chosen_by == "reward":
        raise ValueError("Online DPO needs a reward, or a person who chooses.")
    reward = reward or CompositeReward(())
    reference = HeldReference(chosen.refresh_every if chosen.reference == "refreshed" else 0)
    pairing = _step_pairs(chosen, reward) if chosen.pairs == "steps" else _image_pairs(chosen, training, reward)
    return OnlineDpo(pairing, reference, chosen.updates_per_rollout, chosen.pairs_per_update)


def _image_pairs(chosen: settings.OnlineDpo, training: Training, reward: CompositeReward) -> ImagePairs:
    loop = RolloutSettings(chosen.steps, chosen.guidance)
    automatic = AutomaticBeta(chosen.target_margin, chosen.beta) if chosen.target_margin > 0 else None
    return ImagePairs(
        reward,
        Sampling(chosen.samples_per_prompt, loop, size=sample_size(chosen.size), sampler=chosen.sampler),
        chosen.reward_sum,
        PairLoss(chosen.loss, chosen.beta, chosen.label_smoothing, chosen.sft_weight),
        noising_of(training.noise),
        wait=choosing.wait_a_moment if chosen.chosen_by == "person" else None,
        keeps_noise=chosen.loss_noise == "generated",
        keeps_seeds=not SAMPLERS[chosen.sampler].adds_noise,
        beta=automatic,
    )


def _step_pairs(chosen: settings.OnlineDpo, reward: CompositeReward) -> StepPairs:
    return StepPairs(
        reward,
        RolloutSettings(chosen.steps, chosen.guidance, eta=1.0),
        sample_size(chosen.size),
        StepPairSettings(
            num_candidates=chosen.candidates,
            selection=RandomShare(chosen.timestep_share),
            max_timestep=chosen.max_timestep,
            beta=chosen.step_beta,
            ratio_clip=chosen.ratio_clip,
            reward_sum=chosen.reward_sum,
        ),
    )
