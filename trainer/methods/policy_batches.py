"""The part of a rollout that a policy is trained on, its micro-batches, and the check of its probability ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.sampling.gaussian_step import GaussianStep
from modules.sampling.rollout import trainable_steps
from modules.system.errors import DarkroomError
from modules.system.ranks import ONLY_RANK, Rank
from modules.system.seeds import derive_seed
from trainer.events import WarningRaised
from trainer.methods.protocol import StepContext
from trainer.methods.rollouts import Chunk, PromptBatch, SampledGroup, prompts_of

# The micro-batches of an optimizer step on a rollout: a chunk of images at one of its trained steps.


@dataclass(frozen=True, eq=False)
class PolicyBatch:
    """A micro-batch: a chunk of images, and the `number` of the denoising step that is trained on them.

    `inner_epoch` is the number of earlier optimizer steps on the same rollout. A micro-batch that does not count
    repeats one of another process, because this process has nothing to train in the step.
    """

    prompts: PromptBatch
    chunk: TrainedChunk
    loss_weights_B: torch.Tensor
    metrics: Mapping[str, float]
    number: int
    step: int
    micro_batch: int
    inner_epoch: int
    group_samples: int
    is_last_micro_batch: bool
    is_first_use: bool
    is_silent: bool
    is_first_micro_batch: bool = True
    counts: bool = True


def policy_batches(
    rollout: PolicyRollout,
    group: Sequence[Batch],
    size: Size | None,
    *,
    inner_epoch: int,
    run_seed: int,
    rank: Rank = ONLY_RANK,
) -> Iterator[PolicyBatch]:
    """Yield each chunk of a rollout at each of its trained steps, in the random order of an optimizer step.

    `group` are the loader's batches whose prompts were sampled, with images of a `size` (`prompts_of`). Several
    processes take the micro-batches in turn, at least one each.
    """
    step = rollout.first_step + inner_epoch
    batches = {batch.micro_batch: batch for batch in group}
    passes = [(chunk, number) for chunk in rollout.chunks for number in rollout.trained_steps[chunk.micro_batch]]
    generator = torch.Generator().manual_seed(derive_seed(run_seed, "order of a rollout", step))
    order = [passes[index] for index in torch.randperm(len(passes), generator=generator).tolist()]
    first_uses = {id(chunk): micro_batch for micro_batch, (chunk, _) in reversed(list(enumerate(order)))}
    indices = range(rank.index, len(order), rank.world_size) or range(1)
    for micro_batch in indices:
        chunk, number = order[micro_batch]
        yield PolicyBatch(
            prompts=prompts_of(batches[chunk.micro_batch], size),
            chunk=chunk,
            loss_weights_B=batches[chunk.micro_batch].loss_weights_B,
            metrics=rollout.metrics,
            number=number,
            step=step,
            micro_batch=micro_batch,
            inner_epoch=inner_epoch,
            group_samples=rollout.num_passes,
            is_last_micro_batch=micro_batch == indices[-1],
            is_first_use=first_uses[id(chunk)] == micro_batch,
            is_silent=rollout.is_silent,
            is_first_micro_batch=micro_batch == indices[0],
            counts=rank.index < len(order),
        )


def step_weights(steps: Sequence[GaussianStep], *, equalize: bool) -> dict[int, float]:
    """Return the weight of the loss of each denoising step that can be trained, by its number.

    Equalized, a step counts by one over its influence, scaled so that the mean weight is 1 (PCPO).
    """
    trainable = trainable_steps(steps)
    if not equalize:
        return dict.fromkeys(trainable, 1.0)
    inverse = {number: 1 / steps[number].influence for number in trainable}
    mean = sum(inverse.values()) / len(inverse)
    return {number: weight / mean for number, weight in inverse.items()}


# The part of a rollout that a policy is trained on: latents, log-probabilities and advantages of its images.


@dataclass(frozen=True, eq=False)
class TrainedChunk:
    """An image of every prompt of a batch of the loader, as many as its micro-batch, which has that number.

    `states_BCHW` are the states before and after each trained step, `log_probs_BN` the log-probabilities of all steps.
    `means_BCHW` are the means of the trained steps, if a loss needs them.
    """

    micro_batch: int
    states_BCHW: Mapping[int, torch.Tensor]
    log_probs_BN: torch.Tensor
    advantages_B: torch.Tensor
    means_BCHW: Mapping[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PolicyRollout:
    """A rollout that is being trained on: its images, and the steps that are trained by the number of their batch."""

    first_step: int
    chunks: tuple[TrainedChunk, ...]
    trained_steps: Mapping[int, tuple[int, ...]]
    metrics: Mapping[str, float]

    @property
    def is_silent(self) -> bool:
        """Whether every advantage is 0, so that there is nothing to learn."""
        return not any(bool(chunk.advantages_B.any()) for chunk in self.chunks)

    @property
    def num_passes(self) -> int:
        """The number of images times the number of their trained steps, which an optimizer step is divided by."""
        return sum(len(c.advantages_B) * len(self.trained_steps[c.micro_batch]) for c in self.chunks)

    def to_state(self) -> dict[str, Any]:
        """Return it as tensors and JSON-safe values, for a run that is resumed between its optimizer steps."""
        tensors = {}
        for number, chunk in enumerate(self.chunks):
            tensors[f"{number}.log_probs"] = chunk.log_probs_BN
            tensors[f"{number}.advantages"] = chunk.advantages_B
            tensors |= {f"{number}.state.{index}": state for index, state in chunk.states_BCHW.items()}
            tensors |= {f"{number}.mean.{index}": mean for index, mean in chunk.means_BCHW.items()}
        return {
            "first_step": self.first_step,
            "micro_batches": [chunk.micro_batch for chunk in self.chunks],
            "trained_steps": [[number, *steps] for number, steps in self.trained_steps.items()],
            "metrics": dict(self.metrics),
            **tensors,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PolicyRollout:
        """Return the rollout of a state."""
        chunks = []
        for number, micro_batch in enumerate(state["micro_batches"]):
            states, means = (_by_number(state, f"{number}.{kind}.") for kind in ("state", "mean"))
            log_probs_BN, advantages_B = state[f"{number}.log_probs"], state[f"{number}.advantages"]
            chunks.append(TrainedChunk(micro_batch, states, log_probs_BN, advantages_B, means))
        trained = {number: tuple(steps) for number, *steps in state["trained_steps"]}
        return cls(state["first_step"], tuple(chunks), trained, state["metrics"])


def _by_number(state: Mapping[str, Any], prefix: str) -> dict[int, torch.Tensor]:
    return {int(key[len(prefix) :]): tensor for key, tensor in state.items() if key.startswith(prefix)}


def chunks_to_train(
    sampled: SampledGroup, advantages: Sequence[float], *, best_of: int = 0, keeps_finished: bool = False
) -> list[TrainedChunk]:
    """Return the chunks of a sampled group with the advantages of its images, which are in the group's order.

    Without `keeps_finished` the finished latents are left out, which no trained denoising step leads to.

    With `best_of` above 0 only that many images of each prompt: the better half of them are those with the highest
    advantages, the others those with the lowest. Each of the new chunks still has an image of every prompt, in the same
    order, so that it is computed as it was sampled.
    """
    values = iter(advantages)
    by_batch: dict[int, list[TrainedChunk]] = {}
    for chunk in sampled.chunks:
        advantages_B = torch.tensor([next(values) for _ in chunk.rewards])
        states = chunk.states_BCHW if keeps_finished else _inner_states(chunk)
        trained = TrainedChunk(chunk.prompts.micro_batch, states, chunk.log_probs_BN, advantages_B, chunk.means_BCHW)
        by_batch.setdefault(trained.micro_batch, []).append(trained)
    if not best_of:
        return [chunk for chunks in by_batch.values() for chunk in chunks]
    return [chunk for chunks in by_batch.values() for chunk in _best_and_worst(chunks, best_of)]


def _inner_states(chunk: Chunk) -> dict[int, torch.Tensor]:
    """Return the stored states without the finished latents."""
    last = chunk.log_probs_BN.shape[1]
    return {number: state for number, state in chunk.states_BCHW.items() if number != last}


def _best_and_worst(chunks: Sequence[TrainedChunk], count: int) -> list[TrainedChunk]:
    """Return `count` chunks with the best and the worst images of each prompt, from those with all of its samples."""
    advantages_KB = torch.stack([chunk.advantages_B for chunk in chunks])
    order_KB = advantages_KB.argsort(dim=0, descending=True, stable=True)
    num_best = (count + 1) // 2
    picked_NB = torch.cat([order_KB[:num_best], order_KB[len(chunks) - (count - num_best) :]])
    return [_pick_samples(chunks, picked_B.tolist()) for picked_B in picked_NB]


def _pick_samples(chunks: Sequence[TrainedChunk], samples: Sequence[int]) -> TrainedChunk:
    """Return a chunk that takes its image of prompt i from chunk `samples[i]`."""

    def rows(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([tensors[sample][row] for row, sample in enumerate(samples)])

    return TrainedChunk(
        chunks[0].micro_batch,
        {number: rows([chunk.states_BCHW[number] for chunk in chunks]) for number in chunks[0].states_BCHW},
        rows([chunk.log_probs_BN for chunk in chunks]),
        rows([chunk.advantages_B for chunk in chunks]),
        {number: rows([chunk.means_BCHW[number] for chunk in chunks]) for number in chunks[0].means_BCHW},
    )


# The check that a policy predicts what it sampled with: before its first update every probability ratio is 1.

_EXACT, _ROUNDED = 1e-5, 1e-3  # how far a ratio may be from 1 in float32 on a CPU, and at most elsewhere


@dataclass(eq=False)
class RatioCheck:
    """Collects the ratios of the first optimizer step on a rollout; read from the device once, at the step's end."""

    largest_error: torch.Tensor | None = None

    def add(self, log_ratios_B: torch.Tensor, *, is_first: bool) -> None:
        """Add the ratios of a micro-batch; with the first one of a step, the ratios of earlier steps are forgotten."""
        error = log_ratios_B.detach().expm1().abs().max()
        former = None if is_first else self.largest_error
        self.largest_error = error if former is None else torch.maximum(former, error)

    def finish(self, context: StepContext, *, clip_range: float) -> WarningRaised | None:
        """Return a warning if a ratio is too far from 1; raises DarkroomError if one is in float32 on a CPU.

        Elsewhere, in 16 bits or on a GPU, whose kernels may differ with and without gradient, that is outside of the
        clip range: such ratios are not trained.

        Reasons are dropout, other weights or another batch than those that sampled, or random operations in the model.
        """
        error = 0.0 if self.largest_error is None else float(self.largest_error)
        is_exact = context.device.is_cpu and _computes_in_float32(context)
        if not error > (_EXACT if is_exact else min(_ROUNDED, clip_range)):
            return None
        message = (
            "The model does not predict the same in training as while sampling: before the first step the probability "
            f"ratio differs from 1 by {error:.2g}."
        )
        if is_exact:
            raise DarkroomError(message, advice="Switch off dropout and everything else that is random in the model.")
        return WarningRaised(
            message,
            f"Ratios outside of the clip range of {clip_range:g} are not trained. Widen it, or choose float32 without "
            "TF32.",
        )


@dataclass(eq=False)
class ClipCheck:
    """Collects whether all ratios of an optimizer step are clipped; read from the device once, at the step's end."""

    are_all_outside: torch.Tensor | None = None

    def add(self, is_outside_B: torch.Tensor, *, is_first: bool) -> None:
        """Add the ratios of a micro-batch (B); the first one of a step replaces the ratios of earlier steps."""
        all_outside = is_outside_B.all()
        former = None if is_first else self.are_all_outside
        self.are_all_outside = all_outside if former is None else former & all_outside

    def finish(self, *, clip_range: float) -> WarningRaised | None:
        """Return a warning if all ratios of the step are outside of the clip range."""
        if self.are_all_outside is None or not bool(self.are_all_outside):
            return None
        return WarningRaised(
            f"In a step the probability ratios of all images are outside of the clip range of {clip_range:g}: the "
            "images whose ratio has moved in the direction of their reward train nothing.",
            "Widen the clip range, lower the learning rate, or use fewer inner epochs. The metric clip_fraction shows "
            "how many ratios are outside.",
        )


def _computes_in_float32(context: StepContext) -> bool:
    denoisers = (p.module for p in context.family.parts.values() if p.spec.role == "denoiser")
    in_float32 = all(p.dtype == torch.float32 for module in denoisers for p in module.parameters())
    return in_float32 and not torch.is_autocast_enabled(context.device.type)
