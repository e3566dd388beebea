"""The part of a rollout that a policy is trained on: latents, log-probabilities and advantages of its images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.methods.rollouts import Chunk, SampledGroup


@dataclass(frozen=True, eq=False)
class TrainedChunk:
    """An image of every prompt of a batch of the loader, as many as its micro-batch, which has that number.

    `states_BCHW` are the states before and after each step that is trained, `log_probs_BN` those of all steps.
    """

    micro_batch: int
    states_BCHW: Mapping[int, torch.Tensor]
    log_probs_BN: torch.Tensor
    advantages_B: torch.Tensor


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
            prefix = f"{number}.state."
            states = {int(key[len(prefix) :]): state[key] for key in state if key.startswith(prefix)}
            chunks.append(
                TrainedChunk(micro_batch, states, state[f"{number}.log_probs"], state[f"{number}.advantages"])
            )
        trained = {number: tuple(steps) for number, *steps in state["trained_steps"]}
        return cls(state["first_step"], tuple(chunks), trained, state["metrics"])


def trained_chunks(sampled: SampledGroup, advantages: Sequence[float], *, best_of: int) -> list[TrainedChunk]:
    """Return the chunks of a sampled group with the advantages of its images, which are in the group's order.

    With `best_of` above 0 only that many images of each prompt: the better half of them are those with the highest
    advantages, the others those with the lowest. Each of the new chunks still has an image of every prompt, in the same
    order, so that it is computed as it was sampled.
    """
    values = iter(advantages)
    by_batch: dict[int, list[TrainedChunk]] = {}
    for chunk in sampled.chunks:
        own = torch.tensor([next(values) for _ in chunk.rewards])
        trained = TrainedChunk(chunk.prompts.micro_batch, _inner_states(chunk), chunk.log_probs_BN, own)
        by_batch.setdefault(trained.micro_batch, []).append(trained)
    if not best_of:
        return [chunk for chunks in by_batch.values() for chunk in chunks]
    return [chunk for chunks in by_batch.values() for chunk in _best_and_worst(chunks, best_of)]


def _inner_states(chunk: Chunk) -> dict[int, torch.Tensor]:
    """Return the stored states without the finished latents, which no trained step leads to."""
    last = chunk.log_probs_BN.shape[1]
    return {number: state for number, state in chunk.states_BCHW.items() if number != last}


def _best_and_worst(chunks: Sequence[TrainedChunk], count: int) -> list[TrainedChunk]:
    """Return `count` chunks with the best and the worst images of each prompt, from those with all of its samples."""
    advantages_KB = torch.stack([chunk.advantages_B for chunk in chunks])
    order_KB = advantages_KB.argsort(dim=0, descending=True, stable=True)
    num_best = (count + 1) // 2
    picked_NB = torch.cat([order_KB[:num_best], order_KB[len(chunks) - (count - num_best) :]])
    return [_picked(chunks, picked_B.tolist()) for picked_B in picked_NB]


def _picked(chunks: Sequence[TrainedChunk], samples: Sequence[int]) -> TrainedChunk:
    """Return a chunk whose image of prompt i is that of chunk `samples[i]`."""

    def rows(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([tensors[sample][row] for row, sample in enumerate(samples)])

    return TrainedChunk(
        chunks[0].micro_batch,
        {number: rows([chunk.states_BCHW[number] for chunk in chunks]) for number in chunks[0].states_BCHW},
        rows([chunk.log_probs_BN for chunk in chunks]),
        rows([chunk.advantages_B for chunk in chunks]),
    )
