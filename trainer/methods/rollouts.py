"""Shared by methods that train on their own samples: sampling images for the prompts of an accumulation group.

For a batch of P prompts from the loader, K images of each are sampled in chunks of P: chunk j contains sample j of
every prompt. So a chunk is as large as a micro-batch of training, and a forward pass of training on it computes the
same bits as the one that sampled. Images are dropped once they are scored; latents are kept in float32 on the offload
device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from modules.data.batch import Batch
from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.objectives.rollout_fields import size_of
from modules.rewards.composite import CompositeReward
from modules.sampling.rollout import Rollout, RolloutSettings, mean_diversity, roll_out, sample_with
from modules.system.devices import CPU, Device, move
from modules.system.seeds import derive_seed
from trainer.events import WarningRaised
from trainer.methods.protocol import StepContext
from trainer.ranks import ALONE, Ranks

NOTHING_TO_LEARN = WarningRaised(
    "The sampled images all have the same reward, or none: nothing is learned from them.",
    "Use more images per prompt, or a reward model that distinguishes them.",
)
NOTHING_CHOSEN = WarningRaised(
    "No image was preferred to another in this rollout: nothing is learned from it.",
    "Ties and skipped images train nothing. Show more candidates, or train on other prompts.",
)

OnImages = Callable[["Chunk", torch.Tensor], None]
"""Called with each chunk and its images (P, 3, H, W) in [0, 1], on the training device, before they are dropped."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings with which images are sampled for training.

    `size` is their size; None: the size of the images whose captions are the prompts. `sampler` names one of the
    registry, without log-probabilities; empty: DDIM with `loop`'s eta. With `shares_noise` the images of a prompt start
    from the same noise.
    """

    samples_per_prompt: int
    loop: RolloutSettings
    size: Size | None = None
    sampler: str = ""
    shares_noise: bool = False


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """The prompts of a batch of the loader, and the size of their images. `micro_batch` is the batch's number."""

    captions: tuple[str, ...]
    size: Size
    micro_batch: int


@dataclass(frozen=True, eq=False)
class Chunk:
    """Sample number `sample` of every prompt of `prompts`.

    `states_BCHW` are the stored latents by the number of denoising steps behind them, `log_probs_BN` the
    log-probabilities of the steps, `means_BCHW` the stored means (see `Rollout`), all on the offload device. `rewards`
    and the scores by reward model have a value for each image, NaN for an image without one.
    """

    prompts: PromptBatch
    sample: int
    seeds: tuple[int, ...]
    states_BCHW: Mapping[int, torch.Tensor]
    log_probs_BN: torch.Tensor
    rewards: tuple[float, ...]
    scores: Mapping[str, tuple[float, ...]]
    means_BCHW: Mapping[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SampledGroup:
    """The images sampled for an accumulation group whose first optimizer step is `first_step`.

    All images are in the order of the chunks: all samples of the first batch, then all of the next.
    """

    first_step: int
    chunks: tuple[Chunk, ...]

    @property
    def captions(self) -> list[str]:
        """The prompt of each image."""
        return [caption for chunk in self.chunks for caption in chunk.prompts.captions]

    @property
    def prompt_numbers(self) -> list[int]:
        """The number of each image's prompt, counted over the group; equal captions are different prompts."""
        firsts: dict[int, int] = {}
        count = 0
        for chunk in self.chunks:
            if chunk.prompts.micro_batch not in firsts:
                firsts[chunk.prompts.micro_batch] = count
                count += len(chunk.prompts.captions)
        return [firsts[c.prompts.micro_batch] + row for c in self.chunks for row in range(len(c.prompts.captions))]

    @property
    def rewards(self) -> list[float]:
        """The reward of each image."""
        return [reward for chunk in self.chunks for reward in chunk.rewards]

    @property
    def scores(self) -> dict[str, list[float]]:
        """The scores of each reward model."""
        names = self.chunks[0].scores
        return {name: [score for chunk in self.chunks for score in chunk.scores[name]] for name in names}

    def samples_of_prompts(self, state: int) -> list[torch.Tensor]:
        """Return for each prompt a stored state of its K samples, (K, C, H, W)."""
        by_batch: dict[int, list[torch.Tensor]] = {}
        for chunk in self.chunks:
            by_batch.setdefault(chunk.prompts.micro_batch, []).append(chunk.states_BCHW[state])
        return [
            torch.stack([sample[row] for sample in samples])
            for samples in by_batch.values()
            for row in range(len(samples[0]))
        ]

    def metrics(self, last_state: int) -> dict[str, float]:
        """Return the mean reward, in total and by reward model, its spread, and the diversity of the images.

        `last_state` is the number of the stored state of finished latents. Values that cannot be computed are left out.
        """
        diversity = mean_diversity(self.samples_of_prompts(last_state))
        return {**self.rewards_metrics(), **({} if math.isnan(diversity) else {"diversity": diversity})}

    def rewards_metrics(self) -> dict[str, float]:
        """Return the metrics of the rewards alone."""
        found = {
            "reward": _mean(self.rewards),
            **{f"reward/{name}": _mean(scores) for name, scores in self.scores.items()},
            "reward_std": _std(self.rewards),
        }
        return {name: value for name, value in found.items() if not math.isnan(value)}


def accumulation_groups(loader: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Yield the loader's batches by accumulation group."""
    group: list[Batch] = []
    for batch in loader:
        group.append(batch)
        if batch.is_last_micro_batch:
            yield group
            group = []


def prompts_of(batch: Batch, size: Size | None) -> PromptBatch:
    """Return the prompts of a batch; `size` is the size of the images to sample, None for the batch's own size."""
    return PromptBatch(batch.captions, size or batch.size_conditionings[0].target, batch.micro_batch)


def fingerprint_of(group: Sequence[Batch], size: Size | None) -> str:
    """Return a fingerprint of the prompts of an accumulation group, their order and the sizes of their images.

    Images or captions may change before a run is resumed; samples for other prompts must not be trained then.
    """
    prompts = [(p.captions, str(p.size)) for p in (prompts_of(batch, size) for batch in group)]
    return hashlib.blake2b(repr(prompts).encode(), digest_size=12).hexdigest()


def sample_size(size: str) -> Size | None:
    """Return the size of sampled images from its setting; None where it is empty."""
    sides = size_of(size)
    return Size(*sides) if sides else None


def encode_prompts(captions: Sequence[str], context: StepContext) -> tuple[Conditioning, Conditioning]:
    """Return the conditioning of captions and of the empty prompt.

    They are encoded together, so that the embedding of the empty prompt is as long as the others; with a gradient where
    a text encoder is trained and gradients are on. A part for guidance reads no prompt: the first one stands for the
    empty one then.
    """
    if context.family.spec.names_of("guidance"):
        texts = context.encode(captions)
        return texts, texts.select([0])
    texts = context.encode([*captions, ""])
    return texts.select(range(len(captions))), texts.select([len(captions)])


def sample_group(
    group: Sequence[Batch],
    context: StepContext,
    sampling: Sampling,
    reward: CompositeReward | None,
    *,
    stored_states: Callable[[PromptBatch], Collection[int]],
    stored_means: Callable[[PromptBatch], Collection[int]] = lambda prompts: (),
    on_images: OnImages | None = None,
    ranks: Ranks = ALONE,
) -> SampledGroup:
    """Sample K images for every prompt of an accumulation group, score them, and return them without their images.

    Without a `reward` their rewards are NaN. `stored_states(prompts)` returns the numbers of the states to keep for the
    chunks of a batch, `stored_means(prompts)` the numbers of the steps whose means are kept. Seeds follow from the
    run's seed and the positions, so that a repeated rollout is the same. Raises StopRequested between denoising steps.
    Several processes (`ranks`) sample chunks in turn; each gets all of them, but only its own images.
    """
    local: list[Chunk] = []
    first_step, rank = group[0].step, ranks.rank
    chunks = [
        (prompts_of(batch, sampling.size), sample) for batch in group for sample in range(sampling.samples_per_prompt)
    ]
    for prompts, sample in chunks[rank.index :: rank.world_size]:
        with context.rollout(first_step):
            stored = stored_states(prompts), stored_means(prompts)
            rollout = _roll_out_chunk(prompts, sample, first_step, context, sampling, *stored)
            chunk = _score_rollout(prompts, sample, rollout, reward)
            if on_images is not None:
                on_images(chunk, rollout.images_B3PP)
        local.append(chunk)
    return SampledGroup(first_step, tuple(local if rank.is_alone else _of_all(local, len(chunks), context, ranks)))


def _of_all(local: Sequence[Chunk], count: int, context: StepContext, ranks: Ranks) -> list[Chunk]:
    """Return the chunks that the processes have sampled in turn, in order, on this one's offload device."""
    shares = ranks.gather([_move_chunk(chunk, CPU) for chunk in local])
    size = ranks.rank.world_size
    return [_move_chunk(shares[index % size][index // size], context.temp_device) for index in range(count)]


def _move_chunk(chunk: Chunk, device: Device) -> Chunk:
    """Return a chunk with its tensors on a device."""
    states, means = (
        {number: move(t, device) for number, t in of.items()} for of in (chunk.states_BCHW, chunk.means_BCHW)
    )
    return replace(chunk, states_BCHW=states, log_probs_BN=move(chunk.log_probs_BN, device), means_BCHW=means)


def _roll_out_chunk(
    prompts: PromptBatch,
    sample: int,
    step: int,
    context: StepContext,
    sampling: Sampling,
    stored_states: Collection[int],
    stored_means: Collection[int] = (),
) -> Rollout:
    conditioning, empty = encode_prompts(prompts.captions, context)
    rows, position = range(len(prompts.captions)), (step, prompts.micro_batch)
    seeds = [derive_seed(context.run_seed, "rollout", *position, row, sample) for row in rows]
    noise_seeds = [derive_seed(context.run_seed, "rollout noise", *position, row) for row in rows]
    loop = sampling.loop
    if sampling.sampler:
        return sample_with(
            context.family,
            conditioning,
            empty,
            sampler=sampling.sampler,
            num_steps=loop.num_steps,
            guidance=loop.guidance,
            seeds=seeds,
            size=prompts.size,
            device=context.device,
            temp_device=context.temp_device,
            on_step=context.check,
            noise_seeds=noise_seeds if sampling.shares_noise else None,
            stored_states=stored_states,
        )
    return roll_out(
        context.family,
        conditioning,
        empty,
        seeds=seeds,
        size=prompts.size,
        settings=loop,
        gradient_steps=0,
        device=context.device,
        temp_device=context.temp_device,
        on_step=context.check,
        noise_seeds=noise_seeds if sampling.shares_noise else None,
        stored_states=stored_states,
        stored_means=stored_means,
    )


def score_images(
    reward: CompositeReward, images_B3PP: torch.Tensor, prompts: Sequence[str]
) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
    """Return the reward of each image (NaN if a score is missing), and its scores by reward model."""
    result = reward(images_B3PP, prompts)
    # One synchronization with the device for all reward models.
    rows = torch.stack([t.detach().float() for t in (result.complete_totals, *result.by_name.values())]).tolist()
    rewards, *by_name = (tuple(row) for row in rows)
    return rewards, dict(zip(result.by_name, by_name, strict=True))


def _score_rollout(prompts: PromptBatch, sample: int, rollout: Rollout, reward: CompositeReward | None) -> Chunk:
    rewards: tuple[float, ...] = (math.nan,) * len(prompts.captions)
    scores: dict[str, tuple[float, ...]] = {}
    if reward is not None:
        rewards, scores = score_images(reward, rollout.images_B3PP, prompts.captions)
    return Chunk(
        prompts,
        sample,
        rollout.seeds,
        rollout.states_BCHW,
        rollout.log_probs_BN,
        rewards,
        scores,
        rollout.means_BCHW,
    )


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    finite = [v for v in values if math.isfinite(v)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def _std(values: Sequence[float]) -> float:
    finite = [v for v in values if math.isfinite(v)]
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in finite) / len(finite)) if finite else math.nan
