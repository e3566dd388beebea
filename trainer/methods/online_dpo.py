"""Online DPO: Diffusion-DPO on pairs of images that the model has sampled, the best and the worst of each prompt.

For an accumulation group of the loader, K images of each prompt are sampled with any sampler. Reward models or a person
choose the best and the worst. Several optimizer steps then train on these pairs, each with timesteps and noise of its
own, by the loss of Diffusion-DPO. The loss has no guidance. Prompts whose images are all as good are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.data.size_conditioning import SizeConditioning
from modules.diffusion.noise import Strengths
from modules.objectives.methods import online_dpo as settings
from modules.objectives.rollout_fields import size_of
from modules.rewards.advantage import Combination
from modules.rewards.composite import CompositeReward
from modules.sampling.rollout import RolloutSettings
from modules.system.devices import move
from modules.system.problem import count
from trainer.events import PhaseChanged
from trainer.methods import choosing
from trainer.methods.dpo import LatentPairs, PairLoss, pair_losses
from trainer.methods.held_reference import HeldReference
from trainer.methods.pair_rollout import Candidates, PairRollout, best_and_worst, paired
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod
from trainer.methods.rollout_images import RolloutImages
from trainer.methods.rollouts import (
    NOTHING_TO_LEARN,
    Chunk,
    PromptBatch,
    SampledGroup,
    Sampling,
    accumulation_groups,
    encoded,
    prompts_of,
    sample_group,
)
from trainer.run_folder.choices import Request


@dataclass(frozen=True, slots=True)
class OnlineSettings:
    """The settings of the pairs and their loss. `wait` is None if reward models choose them.

    If a person chooses, `wait()` returns after a moment, when the folder of choices is looked at again.
    """

    pair_loss: PairLoss
    strengths: Strengths
    updates_per_rollout: int
    pairs_per_update: int
    reward_sum: Combination
    wait: Callable[[], None] | None = None


@dataclass(frozen=True, eq=False)
class PairBatch:
    """A micro-batch: pairs of prompts of one batch of the loader, (B, 2, C, H, W) on the offload device."""

    prompts: PromptBatch
    pairs_B2CHW: torch.Tensor
    loss_weights_B: torch.Tensor
    metrics: Mapping[str, float]
    step: int
    micro_batch: int
    update: int
    group_samples: int
    is_last_micro_batch: bool
    is_silent: bool


@dataclass(eq=False)
class OnlineDpo:
    """The method. In a trial, for the dry run, no image is asked about and nothing is reported."""

    reward: CompositeReward
    sampling: Sampling
    settings: OnlineSettings
    reference: HeldReference
    is_trial: bool = False
    _candidates: Candidates | None = field(default=None, init=False)  # that wait for choices
    _rollout: PairRollout | None = field(default=None, init=False)
    _has_warned: bool = field(default=False, init=False)

    def prepare(self, context: StepContext) -> None:
        """Copy the weights for a reference that is refreshed."""
        self.reference.prepare(context)

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[PairBatch]:
        """Sample images for each accumulation group, and yield the micro-batches of every step that trains on them."""
        for group in accumulation_groups(loader):
            if self._rollout is None or self._rollout.first_step != group[0].step:
                self._rollout = None  # frees its memory
                self._rollout = self._sampled(group, context)
            for update in range(self.settings.updates_per_rollout):
                yield from self._micro_batches(self._rollout, group, update)

    def loss(self, batch: PairBatch, context: StepContext) -> StepLoss:
        """Return the weighted mean of the pairs' losses, each at its own random timestep."""
        self.reference.at_step(batch.step)
        chosen_BCHW, rejected_BCHW = move(batch.pairs_B2CHW, context.device).unbind(1)

        def conditioning() -> Conditioning:
            texts, _ = encoded(batch.prompts, context)
            whole = SizeConditioning.whole(batch.prompts.size)
            return context.family.with_size_conditioning(texts, [whole] * len(texts))

        losses_B, metrics = pair_losses(
            LatentPairs(chosen_BCHW, rejected_BCHW, conditioning, batch.step, batch.micro_batch),
            context,
            pair_loss=self.settings.pair_loss,
            strengths=self.settings.strengths,
            reference=lambda: self.reference.active(context),
        )
        loss = (losses_B * batch.loss_weights_B).mean()
        return StepLoss(
            loss=loss * 0 if batch.is_silent else loss,
            num_samples=len(chosen_BCHW),
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            # From the second step on, the loss of pairs with a large margin may have no gradient left.
            zero_gradient_is_legal=batch.is_silent or batch.update > 0,
            metrics=batch.metrics if batch.is_silent else {**batch.metrics, **metrics},
        )

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return a rollout of two denoising steps and two images per prompt, as large as the others, and its loss."""
        loop = replace(self.sampling.loop, num_steps=2)
        sampling = replace(self.sampling, samples_per_prompt=2, loop=loop)
        once = replace(self.settings, updates_per_rollout=1, wait=None)
        return {"sampling and training": OnlineDpo(self.reward, sampling, once, self.reference, is_trial=True)}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the reference, and the rollout or its candidates if the run is inside of it."""
        state = self.reference.state_dict()
        rollout, candidates = self._rollout, self._candidates
        if rollout is not None and rollout.first_step < step < rollout.first_step + self.settings.updates_per_rollout:
            state |= rollout.to_state()
        elif rollout is not None and rollout.first_step == step and self.settings.wait is not None:
            state |= rollout.to_state()  # by choices that are not asked again
        elif candidates is not None and candidates.first_step == step:
            state |= candidates.to_state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.reference.load_state_dict(state)
        self._rollout = PairRollout.from_state(state) if "rollout" in state else None
        self._candidates = Candidates.from_state(state) if "candidates" in state else None

    def _sampled(self, group: Sequence[Batch], context: StepContext) -> PairRollout:
        """Return the pairs of an accumulation group."""
        sizes = [batch.num_samples for batch in group]
        if self.settings.wait is not None:
            return self._chosen_by_person(group, sizes, self.settings.wait, context)
        images = RolloutImages(self.sampling.samples_per_prompt)
        candidates, sampled = self._sample(group, context, images.add)
        if self.is_trial:
            return paired(candidates, [(0, 1)] * sum(sizes), sizes)
        chosen = best_and_worst(sampled, self.reward, self.settings.reward_sum)
        images.report(context, candidates.first_step, chosen)
        context.emit(PhaseChanged("training"))
        rollout = paired(candidates, chosen, sizes)
        if rollout.is_silent and not self._has_warned:
            self._has_warned = True
            context.emit(NOTHING_TO_LEARN)
        return rollout

    def _chosen_by_person(
        self, group: Sequence[Batch], sizes: Sequence[int], wait: Callable[[], None], context: StepContext
    ) -> PairRollout:
        """Sample, or restore what a resumed run has sampled, and return the pairs when all choices are made."""
        first_step = group[0].step
        requests, images = self._restored_requests(first_step, context), None
        if requests is None:
            shown, images = choosing.Candidates(), RolloutImages(self.sampling.samples_per_prompt)
            candidates, _ = self._sample(group, context, images.add, shown.add)
            requests = shown.ask(context.run_dir, first_step)
            self._candidates = replace(candidates, requests=tuple(request.name for request in requests))
        assert self._candidates is not None
        chosen = choosing.wait_for_choices(requests, first_step, context, wait=wait)
        if images is not None:
            images.report(context, first_step, chosen)
        context.emit(PhaseChanged("training"))
        rollout = paired(self._candidates, chosen, sizes)
        self._candidates = None
        return rollout

    def _restored_requests(self, first_step: int, context: StepContext) -> list[Request] | None:
        """Return the requests that a resumed run still waits for; None if it has to sample, or they were removed."""
        if self._candidates is not None and self._candidates.first_step == first_step:
            return choosing.requests_of(context.run_dir, self._candidates.requests)
        self._candidates = None
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
            stored_states=lambda prompts: (last,),
            on_images=None if self.is_trial else each,
        )
        latents = tuple(sampled.samples_of_prompts(last))
        return Candidates(sampled.first_step, latents, sampled.metrics(last)), sampled

    def _micro_batches(self, rollout: PairRollout, group: Sequence[Batch], update: int) -> Iterator[PairBatch]:
        """Yield the pairs of an optimizer step, those of each batch of the loader together."""
        by_batch = rollout.places_of(update, self.settings.pairs_per_update)
        num_pairs = sum(len(places) for places in by_batch)
        for number, places in enumerate(by_batch):
            batch, rows = group[places[0][0]], [row for _, row in places]
            prompts = prompts_of(batch, self.sampling.size)
            yield PairBatch(
                prompts=replace(prompts, captions=tuple(prompts.captions[row] for row in rows)),
                pairs_B2CHW=torch.stack([rollout.pairs_2CHW[place] for place in places]),
                loss_weights_B=batch.loss_weights_B[rows],
                metrics=rollout.metrics,
                step=rollout.first_step + update,
                micro_batch=number,
                update=update,
                group_samples=num_pairs,
                is_last_micro_batch=number == len(by_batch) - 1,
                is_silent=rollout.is_silent,
            )


def build(chosen: settings.OnlineDpo, training: Training, reward: CompositeReward | None) -> TrainingMethod:
    """Return the method from its settings and the run's noising strengths; a person needs no reward."""
    if reward is None and chosen.chosen_by == "reward":
        raise ValueError("Online DPO needs a reward, or a person who chooses.")
    sides = size_of(chosen.size)
    return OnlineDpo(
        reward or CompositeReward(()),
        Sampling(
            chosen.samples_per_prompt,
            RolloutSettings(chosen.steps, chosen.guidance),
            size=Size(*sides) if sides else None,
            sampler=chosen.sampler,
        ),
        OnlineSettings(
            PairLoss(chosen.loss, chosen.beta, chosen.label_smoothing, chosen.sft_weight),
            (training.noise.min_strength, training.noise.max_strength),
            chosen.updates_per_rollout,
            chosen.pairs_per_update,
            chosen.reward_sum,
            wait=choosing.wait_a_moment if chosen.chosen_by == "person" else None,
        ),
        HeldReference(chosen.refresh_every if chosen.reference == "refreshed" else 0),
    )
