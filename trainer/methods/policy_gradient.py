"""Policy gradients on rollouts, for DDPO and GRPO: only their records and their advantages differ.

For an accumulation group of the loader, images are sampled and scored (`rollouts.py`). Each optimizer step then trains
on all of them: a micro-batch is one chunk of images at one of its trained denoising steps, in random order, so that
only one graph of the denoiser exists at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.objectives.methods.ddpo import Ddpo
from modules.objectives.methods.grpo import Grpo
from modules.objectives.policy_losses import approx_kl, log_ratios
from modules.rewards.advantage import Combination, combine_advantages, untrained_share
from modules.rewards.composite import CompositeReward
from modules.sampling.gaussian_step import GaussianStep, timestep_tensor
from modules.sampling.prediction import guided_prediction
from modules.sampling.rollout import RolloutSettings, steps_of, trainable_steps
from modules.sampling.step_selection import RandomShare, StepSelection
from modules.system.devices import move
from modules.system.errors import DarkroomError
from modules.system.ranks import ONLY_RANK
from modules.system.seeds import derive_seed
from trainer.events import WarningRaised
from trainer.methods import policy_batches
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod
from trainer.methods.rollout_images import sample_to_train
from trainer.methods.rollouts import (
    NOTHING_TO_LEARN,
    SampledGroup,
    Sampling,
    accumulation_groups,
    encode_prompts,
    prompts_of,
    sample_size,
)
from trainer.methods.trust_region import TrustRegion


class Comparison(Protocol):
    """The baseline with which the scores of a rollout's images are compared."""

    def advantages(self, name: str, scores: Sequence[float], sampled: SampledGroup) -> list[float]:
        """Return the advantages of the scores of a reward model, in the order of the images."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the memory of earlier rollouts, JSON-safe."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        ...


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The settings of the loss; see `modules/objectives/rollout_fields.py`. `best_of` is 0 to train on all images."""

    trust_region: TrustRegion
    advantage_clip: float
    inner_epochs: int
    kl_weight: float
    reward_sum: Combination
    selection: StepSelection
    equalize_steps: bool = False
    best_of: int = 0


@dataclass(eq=False)
class PolicyGradient:
    """The method. `make_comparison()` returns a comparison that remembers nothing yet.

    In a trial, for the dry run, nothing is reported.
    """

    reward: CompositeReward
    sampling: Sampling
    settings: PolicySettings
    make_comparison: Callable[[], Comparison]
    is_trial: bool = False
    _comparison: Comparison = field(init=False)
    _state_before: dict[str, Any] = field(default_factory=dict, init=False)
    _rollout: policy_batches.PolicyRollout | None = field(default=None, init=False)
    _steps: dict[tuple[int, Size], Sequence[GaussianStep]] = field(default_factory=dict, init=False)  # of the rollout
    _ratio_check: policy_batches.RatioCheck = field(default_factory=policy_batches.RatioCheck, init=False)
    _clip_check: policy_batches.ClipCheck = field(default_factory=policy_batches.ClipCheck, init=False)
    _warned: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._comparison = self.make_comparison()

    def prepare(self, context: StepContext) -> None:
        """Raise DarkroomError for denoising steps that the model does not support, or of which none can be trained."""
        own_px = context.family.spec.default_resolution_px
        if not trainable_steps(steps_of(context.family, self._loop(0), self.sampling.size or Size(own_px, own_px))):
            raise DarkroomError(
                "No denoising step can be trained: with this model's scheduler all of them are deterministic.",
                advice="Increase the denoising steps.",
            )

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[policy_batches.PolicyBatch]:
        """Sample images for each accumulation group, and yield the micro-batches of every step that trains on them."""
        for group in accumulation_groups(loader):
            first_step = group[0].step
            if self._rollout is None or self._rollout.first_step != first_step:
                self._rollout = None  # frees its memory
                self._rollout = self._sample(group, context)
            self._steps = {}
            rank = ONLY_RANK if self.is_trial else context.ranks.rank
            for epoch in range(self.settings.inner_epochs):
                yield from policy_batches.policy_batches(
                    self._rollout,
                    group,
                    self.sampling.size,
                    inner_epoch=epoch,
                    run_seed=context.run_seed,
                    rank=rank,
                )

    def loss(self, batch: policy_batches.PolicyBatch, context: StepContext) -> StepLoss:
        """Return the clipped surrogate of one denoising step, and the KL divergence from the reference."""
        settings, chunk = self.settings, batch.chunk
        steps = self._steps_of(batch, context)
        step = steps[batch.number]
        states = (chunk.states_BCHW[batch.number], chunk.states_BCHW[batch.number + 1])
        before_BCHW, after_BCHW = (move(state, context.device) for state in states)
        kl_B = torch.zeros(len(before_BCHW), device=context.device.torch)
        reference_BCHW = None
        if settings.kl_weight > 0:
            with context.prior():  # before the policy's own pass: no graph may be alive while weights are exchanged
                reference_BCHW = self._mean(batch, before_BCHW, context)
        mean_BCHW = self._mean(batch, before_BCHW, context)
        if reference_BCHW is not None:
            kl_B = step.kl(mean_BCHW, reference_BCHW)
        log_ratios_B = log_ratios(
            step.log_prob(after_BCHW, mean_BCHW), move(chunk.log_probs_BN[:, batch.number], context.device)
        )
        divergences_B = None
        if settings.trust_region.needs_means:
            divergences_B = step.kl(mean_BCHW, move(chunk.means_BCHW[batch.number], context.device))
        surrogate = settings.trust_region.surrogate(
            step, log_ratios_B, move(chunk.advantages_B, context.device), divergences_B
        )
        self._check_ratio(batch, log_ratios_B, divergences_B, context)
        self._check_clipping(batch, surrogate.is_outside_B, context)
        weight = policy_batches.step_weights(steps, equalize=settings.equalize_steps)[batch.number]
        losses_B = weight * surrogate.losses_B + settings.kl_weight * kl_B
        metrics: dict[str, float | torch.Tensor] = {
            **batch.metrics,
            "ratio": log_ratios_B.detach().exp().mean(),
            "approx_kl": approx_kl(log_ratios_B),
            "clip_fraction": surrogate.is_outside_B.float().mean(),
        }
        return StepLoss(
            loss=(losses_B * batch.loss_weights_B).mean(),
            num_samples=len(before_BCHW) * batch.counts,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            # From the second step on every ratio may be clipped.
            zero_gradient_is_legal=batch.is_silent or batch.inner_epoch > 0,
            metrics=metrics if reference_BCHW is None else {**metrics, "kl": kl_B.detach().mean()},
            num_images=len(before_BCHW) if batch.is_first_use and batch.counts else 0,
        )

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return a rollout of two denoising steps and two images per prompt, as large as the others, and its loss."""
        sampling = replace(
            self.sampling,
            samples_per_prompt=min(self.sampling.samples_per_prompt, 2),
            loop=replace(self.sampling.loop, num_steps=2),
        )
        settings = replace(self.settings, selection=RandomShare(), inner_epochs=1, best_of=0)
        trial = PolicyGradient(self.reward, sampling, settings, self.make_comparison, is_trial=True)
        return {"sampling and training": trial}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the rewards that are remembered, and the rollout if the run is inside of one."""
        rollout = self._rollout
        if rollout is None or step >= rollout.first_step + self.settings.inner_epochs:
            return {"comparison": self._comparison.state_dict()}
        if step <= rollout.first_step:  # it is sampled again
            return {"comparison": self._state_before}
        return {"comparison": self._comparison.state_dict(), **rollout.to_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._comparison.load_state_dict(state.get("comparison", {}))
        self._rollout = policy_batches.PolicyRollout.from_state(state) if "first_step" in state else None

    def _loop(self, step: int) -> RolloutSettings:
        """Return the denoising loop of the rollout before an optimizer step."""
        loop = self.sampling.loop
        return replace(loop, stochastic_steps=self.settings.selection.stochastic_steps(loop.num_steps, step))

    def _sample(self, group: Sequence[Batch], context: StepContext) -> policy_batches.PolicyRollout:
        """Sample and score images for an accumulation group; keep what its optimizer steps train on."""
        first_step = group[0].step
        loop = self._loop(first_step)
        selected = self._select_steps(group, loop, context)
        sampled = sample_to_train(
            group,
            context,
            replace(self.sampling, loop=loop),
            self.reward,
            stored_states=lambda prompts: {
                loop.num_steps,
                *(number + i for number in selected[prompts.micro_batch] for i in (0, 1)),
            },
            stored_means=lambda prompts: (
                selected[prompts.micro_batch] if self.settings.trust_region.needs_means else ()
            ),
            is_trial=self.is_trial,
        )
        advantages = self._advantages(sampled)
        metrics = {
            **sampled.metrics(loop.num_steps),
            "equal_rewards": untrained_share(advantages, sampled.prompt_numbers),
        }
        chunks = policy_batches.chunks_to_train(sampled, advantages, best_of=self.settings.best_of)
        rollout = policy_batches.PolicyRollout(first_step, tuple(chunks), selected, metrics)
        if rollout.is_silent:
            self._warn_once(context, NOTHING_TO_LEARN)
        return rollout

    def _select_steps(
        self, group: Sequence[Batch], loop: RolloutSettings, context: StepContext
    ) -> dict[int, tuple[int, ...]]:
        """Return the steps to train for the images of each batch, by its number."""
        selected = {}
        for batch in group:
            steps = steps_of(context.family, loop, prompts_of(batch, self.sampling.size).size)
            seed = derive_seed(context.run_seed, "trained steps", batch.step, batch.micro_batch)
            selected[batch.micro_batch] = self.settings.selection.select(trainable_steps(steps), seed)
        return selected

    def _advantages(self, sampled: SampledGroup) -> list[float]:
        """Return the advantage of each image; its rewards are remembered, if they are compared with later ones."""
        self._state_before = self._comparison.state_dict()
        return combine_advantages(
            sampled.scores,
            {model.name: model.weight for model in self.reward.reward_models},
            lambda name, scores: self._comparison.advantages(name, scores, sampled),
            combination=self.settings.reward_sum,
            limit=self.settings.advantage_clip,
        )

    def _mean(
        self, batch: policy_batches.PolicyBatch, latents_BCHW: torch.Tensor, context: StepContext
    ) -> torch.Tensor:
        """Return the mean of the next latents as the model has it now, computed exactly as it was sampled."""
        conditioning, empty = encode_prompts(batch.prompts.captions, context)
        predict = guided_prediction(
            context.family, conditioning, empty, size=batch.prompts.size, guidance=self.sampling.loop.guidance
        )
        step = self._steps_of(batch, context)[batch.number]
        return step.mean(predict(latents_BCHW, timestep_tensor(step, latents_BCHW.device)), latents_BCHW)

    def _steps_of(self, batch: policy_batches.PolicyBatch, context: StepContext) -> Sequence[GaussianStep]:
        """Return the denoising steps with which the images of a batch were sampled."""
        key = batch.step - batch.inner_epoch, batch.prompts.size
        if key not in self._steps:
            self._steps[key] = steps_of(context.family, self._loop(key[0]), key[1])
        return self._steps[key]

    def _check_ratio(
        self,
        batch: policy_batches.PolicyBatch,
        log_ratios_B: torch.Tensor,
        divergences_B: torch.Tensor | None,
        context: StepContext,
    ) -> None:
        """Check at the end of the first step on a rollout that its ratios are 1, and its divergences 0."""
        if batch.inner_epoch > 0:
            return
        self._ratio_check.add(log_ratios_B, is_first=batch.is_first_micro_batch)
        if divergences_B is not None:
            self._ratio_check.add(divergences_B, is_first=False)
        if batch.is_last_micro_batch:
            region = self.settings.trust_region
            clip_range = region.clip_range if region.has_clip_range else 1.0
            self._warn_once(context, self._ratio_check.finish(context, clip_range=clip_range))

    def _check_clipping(
        self, batch: policy_batches.PolicyBatch, is_outside_B: torch.Tensor, context: StepContext
    ) -> None:
        """Warn at the end of a later step on a rollout whose ratios are all clipped; one without advantages has a
        warning of its own.
        """
        region = self.settings.trust_region
        if batch.inner_epoch == 0 or not region.has_clip_range:  # `_check_ratio` warns
            return
        self._clip_check.add(is_outside_B, is_first=batch.is_first_micro_batch)
        if batch.is_last_micro_batch and not batch.is_silent:
            self._warn_once(context, self._clip_check.finish(clip_range=region.clip_range))

    def _warn_once(self, context: StepContext, warning: WarningRaised | None) -> None:
        if warning is not None and warning.advice not in self._warned and not self.is_trial:
            self._warned.add(warning.advice)
            context.emit(warning)


def build_policy_gradient(
    chosen: Ddpo | Grpo,
    reward: CompositeReward | None,
    new_comparison: Callable[[], Comparison],
    *,
    samples_per_prompt: int,
    selection: StepSelection,
    shares_noise: bool = False,
    best_of: int = 0,
) -> PolicyGradient:
    """Return a method from the settings that both have and from its own. Raises ValueError without a reward."""
    if reward is None:
        raise ValueError("Policy gradients need a reward.")
    loop = RolloutSettings(
        chosen.steps, chosen.guidance, chosen.eta, flow_eta=chosen.flow_eta, flow_noise=chosen.flow_steps
    )
    return PolicyGradient(
        reward,
        Sampling(samples_per_prompt, loop, size=sample_size(chosen.size), shares_noise=shares_noise),
        PolicySettings(
            trust_region=TrustRegion(chosen.trust_region, chosen.clip_range, chosen.divergence_limit),
            advantage_clip=chosen.advantage_clip,
            inner_epochs=chosen.inner_epochs,
            kl_weight=chosen.kl_weight,
            reward_sum=chosen.reward_sum,
            selection=selection,
            equalize_steps=chosen.equalize_steps,
            best_of=best_of,
        ),
        new_comparison,
    )
