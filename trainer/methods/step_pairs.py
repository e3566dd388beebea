"""Pairs of candidates for the next latents of a denoising step, chosen by reward models (SPO).

Liang et al. 2024 (arXiv 2406.04314). Unlike a pair of images, such a pair differs only by the noise of one step, so it
teaches details. The reward models score the clean images that the candidates are predicted to lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.objectives.policy_losses import clip_fraction
from modules.objectives.preference import implicit_accuracy, preference_losses, step_margins
from modules.rewards.advantage import Combination, combine_advantages, group_advantages
from modules.rewards.composite import CompositeReward
from modules.sampling.branching import Branches, branch_out, branching_steps
from modules.sampling.prediction import guided_prediction
from modules.sampling.rollout import RolloutSettings, ddim_steps_of
from modules.sampling.step_selection import RandomShare
from modules.system.devices import CPU, Device, move
from modules.system.errors import DarkroomError
from modules.system.problem import count
from modules.system.seeds import derive_seed
from trainer.events import PhaseChanged
from trainer.methods.online_dpo import PairBatch
from trainer.methods.pair_rollout import PairRollout, Place, extremes_of
from trainer.methods.protocol import StepContext
from trainer.methods.rollout_images import RolloutImages
from trainer.methods.rollouts import Chunk, PromptBatch, SampledGroup, encode_prompts, prompts_of, score_images
from trainer.ranks import ALONE, Ranks

_Scores = dict[int, list[Chunk]]  # the scored candidates of each denoising step


@dataclass(frozen=True, slots=True)
class _BatchComparison:
    """The share of a batch of an accumulation group, by its number there, in a rollout.

    These are its pairs, how many there could be, its finished images, and a pair of any two candidates.
    """

    number: int
    pairs: Mapping[Place, torch.Tensor]
    num_compared: int
    finished: Chunk
    spare: Mapping[Place, torch.Tensor]

    def to(self, device: Device) -> _BatchComparison:
        """Return it with its tensors on a device."""
        pairs, spare = ({place: move(t, device) for place, t in some.items()} for some in (self.pairs, self.spare))
        return replace(self, pairs=pairs, spare=spare)


@dataclass(frozen=True, slots=True)
class StepPairSettings:
    """The settings of the candidates and their loss; `selection` selects the steps that branch."""

    num_candidates: int
    selection: RandomShare
    max_timestep: int
    beta: float
    ratio_clip: float
    reward_sum: Combination


@dataclass(eq=False)
class StepPairs:
    """Samples one image of each prompt, and compares candidates at some of its denoising steps.

    The loss is DPO's on the probability ratios of the model and the reference, with the guidance of the rollout:
    it is a part of the model that sampled. In a trial, for the dry run, the first two candidates are the pair.
    """

    reward: CompositeReward
    loop: RolloutSettings
    size: Size | None
    settings: StepPairSettings
    is_trial: bool = False
    is_costly: bool = False

    def prepare(self, context: StepContext) -> None:
        """Raise DarkroomError for denoising steps that the model does not support, or of which none can be compared."""
        if not self._branching(context):
            raise DarkroomError(
                f"No denoising step can be compared: all but the last are above {self.settings.max_timestep:,}.",
                advice="Increase the denoising steps or the highest timestep.",
            )

    def sample(self, group: Sequence[Batch], context: StepContext) -> PairRollout:
        """Sample the images of an accumulation group and return the pairs of their steps. Raises StopRequested."""
        first_step, images = group[0].step, RolloutImages(1)
        if not self.is_trial:
            num_images = sum(batch.num_samples for batch in group)
            context.emit(PhaseChanged("sampling", f"{count(num_images, 'image')} with candidates"))
        ranks = ALONE if self.is_trial else context.ranks
        local_pairs = [
            self._compare_batch(number, batch, first_step, context, images)
            for number, batch in list(enumerate(group))[ranks.rank.index :: ranks.rank.world_size]
        ]
        all_pairs = local_pairs if ranks.rank.is_alone else _of_all(local_pairs, context, ranks)
        if not self.is_trial:
            images.report(context, first_step)
        pairs = {place: pair for compared in all_pairs for place, pair in compared.pairs.items()}
        rewards = SampledGroup(first_step, tuple(compared.finished for compared in all_pairs)).rewards_metrics()
        metrics = {**rewards, "equal_rewards": 1 - len(pairs) / sum(compared.num_compared for compared in all_pairs)}
        return PairRollout(first_step, pairs or all_pairs[0].spare, metrics, is_silent=not pairs)

    def losses(
        self, batch: PairBatch, context: StepContext, reference: Callable[[], AbstractContextManager[None]]
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the loss of each pair of a denoising step, and the metrics."""
        before_BCHW, chosen_BCHW, rejected_BCHW = move(batch.latents_BNCHW, context.device).unbind(1)
        step = ddim_steps_of(context.family, self.loop)[batch.denoising_step]

        def log_probs() -> torch.Tensor:
            conditioning, empty = encode_prompts(batch.prompts.captions, context)
            predict = guided_prediction(
                context.family, conditioning, empty, size=batch.prompts.size, guidance=self.loop.guidance
            )
            timestep = torch.full((), step.timestep, dtype=torch.int64, device=before_BCHW.device)
            mean_BCHW = step.mean(predict(before_BCHW, timestep), before_BCHW)
            return torch.stack([step.log_prob(after, mean_BCHW) for after in (chosen_BCHW, rejected_BCHW)])

        with reference():  # before the model's own pass: no graph may be alive while weights are exchanged
            of_reference_2B = log_probs()
        log_ratios_2B, limit = log_probs() - of_reference_2B, self.settings.ratio_clip
        margins_B = step_margins(*log_ratios_2B, beta=self.settings.beta, ratio_clip=limit)
        known_B = margins_B.detach()
        metrics = {
            "implicit_accuracy": implicit_accuracy(known_B),
            "margin": known_B.mean(),
            "clip_fraction": clip_fraction(log_ratios_2B, clip_range=limit),
        }
        return preference_losses(margins_B, loss="sigmoid"), metrics

    def trial(self) -> StepPairs:
        """Return these with two candidates in a single denoising step, with images as large as the others."""
        settings = replace(self.settings, num_candidates=2, selection=RandomShare(1e-9))
        return replace(self, settings=settings, is_trial=True)

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return an empty state: a rollout that no step has trained on is sampled again."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""

    def _branching(self, context: StepContext) -> tuple[int, ...]:
        return branching_steps(ddim_steps_of(context.family, self.loop), max_timestep=self.settings.max_timestep)

    def _compare_batch(
        self, number: int, batch: Batch, first_step: int, context: StepContext, images: RolloutImages
    ) -> _BatchComparison:
        """Return the pairs of a batch, which is that number of its accumulation group."""
        branches, scores, finished = self._branch_out(batch, first_step, context, images)
        pairs: dict[Place, torch.Tensor] = {}
        num_compared = 0
        for step, branch in branches.items():
            chosen = self._choose_extremes(scores[step])
            num_compared += len(chosen)
            for row, extremes in enumerate(chosen):
                if extremes is not None:
                    pairs[number, row, step] = _pair(branch, row, extremes)
        step, branch = next(iter(branches.items()))  # every batch branches at least once
        return _BatchComparison(number, pairs, num_compared, finished, {(number, 0, step): _pair(branch, 0, (0, 1))})

    def _branch_out(
        self, batch: Batch, first_step: int, context: StepContext, images: RolloutImages
    ) -> tuple[dict[int, Branches], _Scores, Chunk]:
        """Sample and score a batch's images and their candidates, and the finished images."""
        prompts, position = prompts_of(batch, self.size), (first_step, batch.micro_batch)
        rows = range(len(prompts.captions))
        scores: _Scores = {}

        def score_candidates(step: int, images_B3PP: torch.Tensor) -> None:
            scores.setdefault(step, []).append(self._score(prompts, images_B3PP))

        seed = derive_seed(context.run_seed, "branching steps", *position)
        with context.rollout(first_step):
            conditioning, empty = encode_prompts(prompts.captions, context)
            branches, images_B3PP = branch_out(
                context.family,
                conditioning,
                empty,
                seeds=[derive_seed(context.run_seed, "rollout", *position, row, 0) for row in rows],
                size=prompts.size,
                settings=self.loop,
                branching=self.settings.selection.select(self._branching(context), seed),
                num_candidates=self.settings.num_candidates,
                device=context.device,
                temp_device=context.temp_device,
                on_step=context.check,
                on_candidate=score_candidates,
            )
            finished = self._score(prompts, images_B3PP)
        if not self.is_trial:
            images.add(finished, images_B3PP)
        return branches, scores, finished

    def _score(self, prompts: PromptBatch, images_B3PP: torch.Tensor) -> Chunk:
        rewards, scores = score_images(self.reward, images_B3PP, prompts.captions)
        empty = torch.empty(len(prompts.captions), 0)
        return Chunk(prompts, 0, (), {}, empty, rewards, scores)

    def _choose_extremes(self, candidates: Sequence[Chunk]) -> list[tuple[int, int] | None]:
        """Return the numbers of the best and the worst candidate of each row; None if their rewards are equal."""
        rows = range(len(candidates[0].rewards))
        if self.is_trial:
            return [(0, 1) for _ in rows]
        names = [model.name for model in self.reward.reward_models]
        advantages = combine_advantages(
            {name: [score for chunk in candidates for score in chunk.scores[name]] for name in names},
            {model.name: model.weight for model in self.reward.reward_models},
            lambda name, scores: group_advantages(scores, [*rows] * len(candidates)),
            combination=self.settings.reward_sum,
        )
        return [extremes_of(advantages[row :: len(rows)]) for row in rows]


def _of_all(local: Sequence[_BatchComparison], context: StepContext, ranks: Ranks) -> list[_BatchComparison]:
    """Return the comparisons of all processes, in the order of the batches, on this one's offload device."""
    shares = ranks.gather([compared.to(CPU) for compared in local])
    comparisons = [compared.to(context.temp_device) for share in shares for compared in share]
    return sorted(comparisons, key=lambda compared: compared.number)


def _pair(branch: Branches, row: int, extremes: tuple[int, int]) -> torch.Tensor:
    """Return the latents before a step of one image, and its chosen and rejected ones after it, (3, C, H, W)."""
    candidates_KCHW = branch.candidates_KBCHW[:, row]
    return torch.stack([branch.before_BCHW[row], *(candidates_KCHW[number] for number in extremes)])
