"""The order of an epoch: the grouping of images into batches and steps, a function of the seed and the epoch only."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

import numpy as np

from modules.data.buckets import Size
from modules.data.samples import AccumulationGroups, Numbers, SampleIndex, Samples, SizeTable
from modules.system.seeds import derive_seed

PartialBatches = Literal["keep", "merge", "drop"]


@dataclass(frozen=True, slots=True)
class ConceptRepeats:
    """The examples of one concept, which are contiguous, and how often an epoch repeats each.

    With `num_samples`, an epoch has that many samples of the concept instead, whatever `repeats` is. With `seed`, its
    examples take their turns in a shuffled order instead of by name, the same in every epoch.
    """

    first_example: int
    num_examples: int
    repeats: float
    num_samples: Fraction | None = None
    seed: int | None = None

    @property
    def exact_repeats(self) -> Fraction:
        """The repeats as entered: 0.1 is exactly a tenth, not the nearest binary number."""
        if self.num_samples is not None:
            return self.num_samples / self.num_examples if self.num_examples else Fraction(0)
        return Fraction(self.repeats).limit_denominator(10_000)

    def turns(self) -> Sequence[int]:
        """Return the indices of the concept's examples in the order of their turns."""
        return range(self.num_examples) if self.seed is None else _shuffled_turns(self.seed, self.num_examples)

    def uses_before(self, example: int, epoch: int) -> int:
        """Return how often an example of the concept is used before an epoch."""
        number = example - self.first_example
        turn = number if self.seed is None else _turn_numbers(self.seed, self.num_examples)[number]
        whole, num_extra = _whole_and_extra(self.repeats, self.num_samples, self.num_examples, epoch)
        return whole * epoch + _extra_uses(num_extra, turn, self.num_examples)


@lru_cache(maxsize=256)
def _whole_and_extra(repeats: float, num_samples: Fraction | None, count: int, epoch: int) -> tuple[int, int]:
    """Return the whole repeats of a concept's examples, and the number of its extra uses before an epoch."""
    whole, fraction = divmod(ConceptRepeats(0, count, repeats, num_samples).exact_repeats, 1)
    return whole, math.ceil(epoch * fraction * count)


@lru_cache(maxsize=64)
def _shuffled_turns(seed: int, count: int) -> Sequence[int]:
    turns = list(range(count))
    random.Random(derive_seed(seed, "balancing", count)).shuffle(turns)
    return tuple(turns)


@lru_cache(maxsize=64)
def _turn_numbers(seed: int, count: int) -> Sequence[int]:
    """Return the number of each example's turn: the inverse of `_shuffled_turns`."""
    numbers = [0] * count
    for turn, example in enumerate(_shuffled_turns(seed, count)):
        numbers[example] = turn
    return tuple(numbers)


def _extra_uses(num_extra: int, turn: int, count: int) -> int:
    """Return how many of the first `num_extra` extra uses fall on one of `count` turns."""
    return (num_extra - turn + count - 1) // count


def sample_indices_of_epoch(concepts: Sequence[ConceptRepeats], *, num_resolutions: int, epoch: int) -> Samples:
    """Return every sample index of an epoch, in a fixed order.

    The fractional part of the repeats rotates: each epoch adds its share of extra repeats, and the next epoch continues
    where it stopped, so that all examples are used equally often, however few they are. An example's resolutions
    alternate from one use to the next.
    """
    parts = []
    for concept in concepts:
        examples_N, shown_before_N, counts_N = _uses(concept, epoch)
        owners = np.repeat(np.arange(len(counts_N)), counts_N)
        repeats = np.arange(len(owners)) - (np.cumsum(counts_N) - counts_N)[owners]
        examples = examples_N[owners]
        resolutions = (examples + shown_before_N[owners] + repeats) % num_resolutions
        parts.append(Samples(np.stack([examples, repeats, resolutions, np.full_like(examples, epoch)])))
    return Samples.concatenate(parts)


def sizes_of_epoch(
    concepts: Sequence[ConceptRepeats],
    buckets: Sequence[Sequence[Size]] | SizeTable,
    *,
    num_resolutions: int,
    epoch: int,
) -> Counter[Size]:
    """Return how many samples of each size an epoch has, without creating them as `sample_indices_of_epoch` does.

    `buckets[example][resolution]` is the size of a sample. The sizes are in the order of their first use.
    """
    table = SizeTable.of(buckets)
    counts: Counter[Size] = Counter()
    for concept in concepts:
        examples_N, shown_before_N, counts_N = _uses(concept, epoch)
        turns_R = np.arange(num_resolutions)
        resolutions_NR = (examples_N[:, None] + shown_before_N[:, None] + turns_R) % num_resolutions
        numbers_NR = table.numbers_NR[examples_N[:, None], resolutions_NR]
        rounds_N, rest_N = np.divmod(counts_N, num_resolutions)
        times_NR = rounds_N[:, None] + (turns_R < rest_N[:, None])
        is_used_NR = times_NR > 0
        used, firsts, places = np.unique(numbers_NR[is_used_NR], return_index=True, return_inverse=True)
        times = np.zeros(len(used), np.int64)
        np.add.at(times, places, times_NR[is_used_NR])
        for place in np.argsort(firsts):
            counts[table.sizes[used[place]]] += int(times[place])
    return counts


def uses_of_size_before(sizes: Sequence[Size], size: Size, *, example: int, use: int) -> int:
    """Return how many of the first `use` uses of an example have a size. `sizes` are its sizes by resolution.

    The resolutions alternate as in `sample_indices_of_epoch`.
    """
    rounds, rest = divmod(use, len(sizes))
    return rounds * sizes.count(size) + sum(sizes[(example + turn) % len(sizes)] == size for turn in range(rest))


def _uses(concept: ConceptRepeats, epoch: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return the examples of a concept in an epoch, how often each was used before, and how often it is used in it."""
    count, turns = concept.num_examples, np.asarray(concept.turns(), np.int64)
    whole, fraction = divmod(concept.exact_repeats, 1)
    first_extra, end_extra = math.ceil(epoch * fraction * count), math.ceil((epoch + 1) * fraction * count)
    used = np.arange(count) if whole else np.sort(np.arange(first_extra, end_extra) % max(1, count))
    extra_before = (first_extra - used + count - 1) // max(1, count)
    extra = (end_extra - used + count - 1) // max(1, count) - extra_before
    return concept.first_example + turns[used], whole * epoch + extra_before, whole + extra


def period_of_epochs(concepts: Sequence[ConceptRepeats], *, num_resolutions: int) -> int:
    """Return the number of epochs after which the numbers of samples per size repeat."""
    return num_resolutions * math.lcm(*(c.exact_repeats.denominator for c in concepts))


def shuffle_by_size(
    sample_indices: Sequence[SampleIndex], buckets: Sequence[Sequence[Size]] | SizeTable, draw: random.Random
) -> dict[Size, Samples]:
    """Return the samples of each size in random order, the sizes sorted. `buckets` are as in `groups_of_epoch`."""
    samples, table = Samples.of(sample_indices), SizeTable.of(buckets)
    numbers = table.numbers_of(samples)
    by_number = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(table.sizes))).tolist()
    ordered = {}
    for size, start, end in zip(table.sizes, [0, *ends], ends, strict=False):
        if end > start:
            places = by_number[start:end].tolist()  # a list: the order is the one of Python's own shuffle
            draw.shuffle(places)
            ordered[size] = samples.take(np.array(places, np.int64))
    return ordered


def generator_of_epoch(run_seed: int, epoch: int) -> random.Random:
    """Return the generator of an epoch's order, which depends on nothing else."""
    return random.Random(derive_seed(run_seed, "order", epoch))


def groups_of_epoch(
    sample_indices: Sequence[SampleIndex],
    buckets: Sequence[Sequence[Size]] | SizeTable,
    *,
    batch_size: int,
    accumulation_steps: int,
    run_seed: int,
    epoch: int,
    partial_batches: PartialBatches = "keep",
    carried: Mapping[Size, Sequence[SampleIndex]] = MappingProxyType({}),
) -> AccumulationGroups:
    """Return the optimizer steps of an epoch. `buckets[example][resolution]` is the size of a sample.

    A micro-batch contains samples of one size. By default no sample is dropped: a bucket's last micro-batch may be
    smaller, and so may the epoch's last accumulation group; a group never extends into the next epoch. With "drop" and
    "merge" smaller micro-batches are left out; with "merge", `carried` are the samples left over from earlier epochs,
    which come first in their bucket and stay samples of their epochs.
    """
    draw = generator_of_epoch(run_seed, epoch)
    by_size = shuffle_by_size(sample_indices, buckets, draw)
    parts: list[Samples] = []
    starts: list[Numbers] = []
    ends: list[Numbers] = []
    first = 0
    for size in sorted({*by_size, *carried}):
        group = Samples.concatenate([Samples.of(s[size]) for s in (carried, by_size) if size in s])
        count = len(group) if partial_batches == "keep" else len(group) // batch_size * batch_size
        starts.append(first + np.arange(0, count, batch_size))
        ends.append(np.minimum(starts[-1] + batch_size, first + count))
        parts.append(group)
        first += len(group)
    batches = list(range(sum(map(len, starts))))
    draw.shuffle(batches)
    starts_B, ends_B = (np.concatenate([np.zeros(0, np.int64), *of_sizes])[batches] for of_sizes in (starts, ends))
    return AccumulationGroups(Samples.concatenate(parts), starts_B, ends_B, accumulation_steps=accumulation_steps)
