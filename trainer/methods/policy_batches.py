"""The micro-batches of an optimizer step on a rollout: a chunk of images at one of its denoising steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.sampling.ddim_step import DdimStep
from modules.sampling.rollout import trainable_steps
from modules.system.ranks import ONLY_RANK, Rank
from modules.system.seeds import derive_seed
from trainer.methods.rollouts import PromptBatch
from trainer.methods.trained_chunks import PolicyRollout, TrainedChunk


@dataclass(frozen=True, eq=False)
class PolicyBatch:
    """A micro-batch: a chunk of images, and the denoising step to train, with its number and weight.

    `inner_epoch` counts the optimizer steps that were made on the same rollout before. One that does not count repeats
    that of another process, which has nothing to train in the step.
    """

    prompts: PromptBatch
    chunk: TrainedChunk
    loss_weights_B: torch.Tensor
    metrics: Mapping[str, float]
    number: int
    denoising_step: DdimStep
    weight: float
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
    steps: Sequence[DdimStep],
    prompts: Mapping[int, PromptBatch],
    loss_weights: Mapping[int, torch.Tensor],
    *,
    inner_epoch: int,
    equalize_steps: bool,
    run_seed: int,
    rank: Rank = ONLY_RANK,
) -> Iterator[PolicyBatch]:
    """Yield each chunk of a rollout at each of its trained denoising steps, in the random order of an optimizer step.

    `steps` are those of the rollout; `prompts` and the weights of their losses are by the number of the loader's batch.
    Several processes take them in turn, at least one each.
    """
    step = rollout.first_step + inner_epoch
    weights = step_weights(steps, equalize=equalize_steps)
    passes = [(chunk, number) for chunk in rollout.chunks for number in rollout.trained_steps[chunk.micro_batch]]
    generator = torch.Generator().manual_seed(derive_seed(run_seed, "order of a rollout", step))
    order = [passes[index] for index in torch.randperm(len(passes), generator=generator).tolist()]
    first_uses = {id(chunk): micro_batch for micro_batch, (chunk, _) in reversed(list(enumerate(order)))}
    own = range(rank.index, len(order), rank.world_size) or range(1)
    for micro_batch in own:
        chunk, number = order[micro_batch]
        yield PolicyBatch(
            prompts=prompts[chunk.micro_batch],
            chunk=chunk,
            loss_weights_B=loss_weights[chunk.micro_batch],
            metrics=rollout.metrics,
            number=number,
            denoising_step=steps[number],
            weight=weights[number],
            step=step,
            micro_batch=micro_batch,
            inner_epoch=inner_epoch,
            group_samples=rollout.num_passes,
            is_last_micro_batch=micro_batch == own[-1],
            is_first_use=first_uses[id(chunk)] == micro_batch,
            is_silent=rollout.is_silent,
            is_first_micro_batch=micro_batch == own[0],
            counts=rank.index < len(order),
        )


def step_weights(steps: Sequence[DdimStep], *, equalize: bool) -> dict[int, float]:
    """Return the weight of the loss of each denoising step that can be trained, by its number.

    Equalized, a step counts by one over its influence, scaled so that the mean weight is 1 (PCPO).
    """
    trainable = trainable_steps(steps)
    if not equalize:
        return dict.fromkeys(trainable, 1.0)
    inverse = {number: 1 / steps[number].influence for number in trainable}
    mean = sum(inverse.values()) / len(inverse)
    return {number: weight / mean for number, weight in inverse.items()}
