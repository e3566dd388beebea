"""Online DPO: the model samples, the best and the worst of each prompt become a pair, and it learns to prefer the best.

For an accumulation group of the loader, pairs are sampled (`image_pairs.py`, `step_pairs.py`). Several optimizer steps
then train on them; a micro-batch has the pairs of one batch of the loader. Prompts without a best and a worst image are
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.system.ranks import ONLY_RANK, Rank
from modules.system.seeds import derive_seed
from trainer.events import PhaseChanged
from trainer.methods.held_reference import HeldReference
from trainer.methods.pair_rollout import PairRollout
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod
from trainer.methods.rollouts import (
    NOTHING_CHOSEN,
    NOTHING_TO_LEARN,
    PromptBatch,
    accumulation_groups,
    fingerprint_of,
    prompts_of,
)


@dataclass(frozen=True, eq=False)
class PairBatch:
    """A micro-batch: the latents of B pairs (`PairRollout`), with their prompts, (B, N, C, H, W) on the offload device.

    `denoising_step` is the number of the step whose pairs they are, 0 for images. `update` counts the optimizer steps
    that were made on the same rollout before. A micro-batch that does not count repeats one of another
    process, because this process has nothing to train in the step.
    """

    prompts: PromptBatch
    latents_BNCHW: torch.Tensor
    denoising_step: int
    loss_weights_B: torch.Tensor
    metrics: Mapping[str, float]
    step: int
    micro_batch: int
    update: int
    group_samples: int
    is_last_micro_batch: bool
    is_silent: bool
    counts: bool = True


class Pairing(Protocol):
    """The sampling of pairs, and their loss."""

    @property
    def size(self) -> Size | None:
        """The size of the sampled images; None for the size of the images whose captions are the prompts."""
        ...

    @property
    def is_costly(self) -> bool:
        """Whether a rollout is kept in a backup before any step has trained on it; otherwise it is sampled again."""
        ...

    @property
    def is_trial(self) -> bool:
        """Whether it is for the dry run, and reports nothing."""
        ...

    def prepare(self, context: StepContext) -> None:
        """Raise DarkroomError if no pair can be sampled."""
        ...

    def sample(self, group: Sequence[Batch], context: StepContext) -> PairRollout:
        """Return the pairs of an accumulation group. Raises StopRequested."""
        ...

    def losses(
        self, batch: PairBatch, context: StepContext, reference: Callable[[], AbstractContextManager[None]]
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the loss of each pair, (B,), and the metrics. Within `reference()` the model is the reference."""
        ...

    def trial(self) -> Pairing:
        """Return a method that samples the smallest rollout, for the dry run."""
        ...

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return its state for a run that is resumed after `step` steps."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        ...


@dataclass(eq=False)
class OnlineDpo:
    """The method, with the pairs per optimizer step (0: all of a rollout)."""

    pairing: Pairing
    reference: HeldReference
    updates_per_rollout: int
    pairs_per_update: int = 0
    _rollout: PairRollout | None = field(default=None, init=False)
    _has_warned: bool = field(default=False, init=False)

    def prepare(self, context: StepContext) -> None:
        """Copy the weights for a reference that is refreshed. Raises DarkroomError if no pair can be sampled."""
        self.pairing.prepare(context)
        self.reference.prepare(context)

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[PairBatch]:
        """Sample pairs for each accumulation group, and yield the micro-batches of every step that trains on them."""
        for group in accumulation_groups(loader):
            fingerprint = fingerprint_of(group, self.pairing.size)
            known = self._rollout and (self._rollout.first_step, self._rollout.fingerprint)
            if self._rollout is None or known != (group[0].step, fingerprint):
                self._rollout = None  # frees its memory
                self._rollout = replace(self.pairing.sample(group, context), fingerprint=fingerprint)
                self._report(self._rollout, context)
            for update in range(self.updates_per_rollout):
                rank = ONLY_RANK if self.pairing.is_trial else context.ranks.rank
                yield from self._micro_batches(self._rollout, group, update, run_seed=context.run_seed, rank=rank)

    def loss(self, batch: PairBatch, context: StepContext) -> StepLoss:
        """Return the weighted mean of the pairs' losses."""
        self.reference.at_step(batch.step)
        losses_B, metrics = self.pairing.losses(batch, context, lambda: self.reference.active(context))
        loss = (losses_B * batch.loss_weights_B).mean()
        return StepLoss(
            loss=loss * 0 if batch.is_silent else loss,
            num_samples=len(losses_B) * batch.counts,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            # From the second step on, the loss of pairs with a large margin may have no gradient left.
            zero_gradient_is_legal=batch.is_silent or batch.update > 0,
            metrics=batch.metrics if batch.is_silent else {**batch.metrics, **metrics},
        )

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return the smallest rollout with images as large as the others, and its loss; it has the same reference."""
        return {"sampling and training": OnlineDpo(self.pairing.trial(), self.reference, updates_per_rollout=1)}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the reference, and the rollout if the run is inside of it."""
        state, rollout = {**self.reference.state_dict(), **self.pairing.state_dict(step)}, self._rollout
        if rollout is None or not rollout.first_step <= step < rollout.first_step + self.updates_per_rollout:
            return state
        is_untrained = step == rollout.first_step
        return state if is_untrained and not self.pairing.is_costly else {**state, **rollout.to_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.reference.load_state_dict(state)
        self.pairing.load_state_dict(state)
        self._rollout = PairRollout.from_state(state) if "rollout" in state else None

    def _report(self, rollout: PairRollout, context: StepContext) -> None:
        if self.pairing.is_trial:
            return
        context.emit(PhaseChanged("training"))
        if rollout.is_silent and not self._has_warned:
            self._has_warned = True
            context.emit(NOTHING_CHOSEN if self.pairing.is_costly else NOTHING_TO_LEARN)

    def _micro_batches(
        self, rollout: PairRollout, group: Sequence[Batch], update: int, *, run_seed: int, rank: Rank
    ) -> Iterator[PairBatch]:
        """Yield the pairs of an optimizer step; the pairs of one batch of the loader are together.

        Several processes take these in turn, at least one each.
        """
        seed = derive_seed(run_seed, "order of pairs", rollout.first_step)
        together = rollout.places_of(update, self.pairs_per_update, seed=seed)
        num_pairs = sum(len(places) for places in together)
        indices = range(rank.index, len(together), rank.world_size) or range(1)
        for number in indices:
            places = together[number]
            batch, rows = group[places[0][0]], [row for _, row, _ in places]
            prompts = prompts_of(batch, self.pairing.size)
            yield PairBatch(
                prompts=replace(prompts, captions=tuple(prompts.captions[row] for row in rows)),
                latents_BNCHW=torch.stack([rollout.latents_NCHW[place] for place in places]),
                denoising_step=places[0][2],
                loss_weights_B=batch.loss_weights_B[rows],
                metrics=rollout.metrics,
                step=rollout.first_step + update,
                micro_batch=number,
                update=update,
                group_samples=num_pairs,
                is_last_micro_batch=number == indices[-1],
                is_silent=rollout.is_silent,
                counts=rank.index < len(together),
            )
