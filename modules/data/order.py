"""The order of an epoch: the grouping of images into batches and steps, a function of the seed and the epoch only."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from modules.data.buckets import Size
from modules.system.ranks import Rank
from modules.system.seeds import derive_seed


@dataclass(frozen=True, slots=True, order=True)
class SampleIndex:
    """One use of an image in an epoch: the example's index, the number of its repeat, and the resolution's index.

    `epoch` is the one it belongs to, from which its augmentation, its caption and its mask are drawn, also where a
    merged batch trains it in a later one.
    """

    example: int
    repeat: int
    resolution: int
    epoch: int


PartialBatches = Literal["keep", "merge", "drop"]
MicroBatch = tuple[SampleIndex, ...]
AccumulationGroup = tuple[MicroBatch, ...]  # the micro-batches of one optimizer step


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
        """Return how often an example of the concept is used in the epochs before one."""
        number = example - self.first_example
        turn = number if self.seed is None else _turn_numbers(self.seed, self.num_examples)[number]
        whole, broken = divmod(self.exact_repeats, 1)
        return whole * epoch + _extra_uses(math.ceil(epoch * broken * self.num_examples), turn, self.num_examples)


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


def sample_indices_of_epoch(
    concepts: Sequence[ConceptRepeats], *, num_resolutions: int, epoch: int
) -> list[SampleIndex]:
    """Return every sample index of an epoch, in a fixed order.

    The fractional part of the repeats rotates: each epoch adds its share of extra repeats, and the next epoch continues
    where it stopped, so that all examples are used equally often, however few they are. An example's resolutions
    alternate from one use to the next.
    """
    return [
        SampleIndex(example, repeat, (example + shown_before + repeat) % num_resolutions, epoch)
        for example, shown_before, count in _uses(concepts, epoch)
        for repeat in range(count)
    ]


def sizes_of_epoch(
    concepts: Sequence[ConceptRepeats], buckets: Sequence[Sequence[Size]], *, num_resolutions: int, epoch: int
) -> Counter[Size]:
    """Return how many samples of each size an epoch has, without creating them as `sample_indices_of_epoch` does.

    `buckets[example][resolution]` is the size of a sample.
    """
    counts: Counter[Size] = Counter()
    for example, shown_before, count in _uses(concepts, epoch):
        rounds, rest = divmod(count, num_resolutions)
        for turn in range(min(count, num_resolutions)):
            size = buckets[example][(example + shown_before + turn) % num_resolutions]
            counts[size] += rounds + (turn < rest)
    return counts


def uses_of_size_before(sizes: Sequence[Size], size: Size, *, example: int, use: int) -> int:
    """Return how many of the first `use` uses of an example have a size. `sizes` are its sizes by resolution.

    The resolutions alternate as in `sample_indices_of_epoch`.
    """
    rounds, rest = divmod(use, len(sizes))
    return rounds * sizes.count(size) + sum(sizes[(example + turn) % len(sizes)] == size for turn in range(rest))


def _uses(concepts: Sequence[ConceptRepeats], epoch: int) -> Iterator[tuple[int, int, int]]:
    """Yield each example of an epoch with how often it was used before, and how often it is used in it."""
    for concept in concepts:
        count, turns = concept.num_examples, concept.turns()
        whole, broken = divmod(concept.exact_repeats, 1)
        first_extra, end_extra = math.ceil(epoch * broken * count), math.ceil((epoch + 1) * broken * count)
        used = range(count) if whole else sorted(turn % count for turn in range(first_extra, end_extra))
        for turn in used:
            extra_before = _extra_uses(first_extra, turn, count)
            extra = _extra_uses(end_extra, turn, count) - extra_before
            yield concept.first_example + turns[turn], whole * epoch + extra_before, whole + extra


def period_of_epochs(concepts: Sequence[ConceptRepeats], *, num_resolutions: int) -> int:
    """Return the number of epochs after which the numbers of samples per size repeat."""
    return num_resolutions * math.lcm(*(c.exact_repeats.denominator for c in concepts))


def shuffled_by_size(
    sample_indices: Sequence[SampleIndex], buckets: Sequence[Sequence[Size]], draw: random.Random
) -> dict[Size, list[SampleIndex]]:
    """Return the samples of each size in random order, the sizes sorted. `buckets` are as in `groups_of_epoch`."""
    by_size: dict[Size, list[SampleIndex]] = defaultdict(list)
    for sample_index in sample_indices:
        by_size[buckets[sample_index.example][sample_index.resolution]].append(sample_index)
    ordered = {size: by_size[size] for size in sorted(by_size)}
    for group in ordered.values():
        draw.shuffle(group)
    return ordered


def generator_of_epoch(run_seed: int, epoch: int) -> random.Random:
    """Return the generator of an epoch's order, which depends on nothing else."""
    return random.Random(derive_seed(run_seed, "order", epoch))


def groups_of_epoch(
    sample_indices: Sequence[SampleIndex],
    buckets: Sequence[Sequence[Size]],
    *,
    batch_size: int,
    accumulation_steps: int,
    run_seed: int,
    epoch: int,
    partial_batches: PartialBatches = "keep",
    carried: Mapping[Size, Sequence[SampleIndex]] = MappingProxyType({}),
) -> tuple[AccumulationGroup, ...]:
    """Return the optimizer steps of an epoch. `buckets[example][resolution]` is the size of a sample.

    A micro-batch contains samples of one size. By default no sample is dropped: a bucket's last micro-batch may be
    smaller, and so may the epoch's last accumulation group; a group never extends into the next epoch. With "drop" and
    "merge" smaller micro-batches are left out; with "merge", `carried` are the samples left over from earlier epochs,
    which come first in their bucket and stay samples of their epochs.
    """
    draw = generator_of_epoch(run_seed, epoch)
    by_size = shuffled_by_size(sample_indices, buckets, draw)
    batches: list[MicroBatch] = []
    for size in sorted({*by_size, *carried}):
        group = [*carried.get(size, ()), *by_size.get(size, ())]
        end = len(group) if partial_batches == "keep" else len(group) // batch_size * batch_size
        batches += [tuple(group[i : i + batch_size]) for i in range(0, end, batch_size)]
    draw.shuffle(batches)
    return tuple(tuple(batches[i : i + accumulation_steps]) for i in range(0, len(batches), accumulation_steps))


# How the processes of a run share an optimizer step: by micro-batches, and by images if micro-batches do not suffice.
#
# The seeds of a sample depend on its step, its micro-batch and its place there, never on the process that trains it, so
# a step has the same noise and timesteps for any number of processes.


@dataclass(frozen=True, slots=True)
class Share:
    """The images of one micro-batch that one process trains, from `first_row` on.

    `number` counts the micro-batches of its accumulation group, `whole` all its images. A share that does not count
    repeats an image of another process, with no weight: its process would have nothing to train in the step.
    """

    number: int
    whole: MicroBatch
    first_row: int
    num_rows: int
    counts: bool = True

    @property
    def sample_indices(self) -> MicroBatch:
        """The images of the share."""
        return self.whole[self.first_row : self.first_row + self.num_rows]

    @property
    def is_whole(self) -> bool:
        """Whether the process trains the whole micro-batch."""
        return self.num_rows == len(self.whole)


def share_of(group: AccumulationGroup, rank: Rank, *, in_step: bool = False) -> tuple[Share, ...]:
    """Return the share of an accumulation group, which is one optimizer step, that a process trains; never empty.

    Whole micro-batches as long as there is one for each process; of each of the rest every process takes its part of
    the images. The counting shares of all processes are disjoint and together complete. With `in_step` all processes
    have equally many shares: processes that shard the weights must compute each forward pass together.
    """
    size = rank.world_size
    num_dealt = len(group) // size * size
    shares = [Share(n, m, 0, len(m)) for n, m in enumerate(group[:num_dealt]) if n % size == rank.index]
    for number, whole in enumerate(group[num_dealt:], start=num_dealt):
        first, end = (len(whole) * place // size for place in (rank.index, rank.index + 1))
        if end > first:
            shares.append(Share(number, whole, first, end - first))
        elif in_step:
            shares.append(Share(number, whole, 0, 1, counts=False))
    if not shares and group:
        shares.append(Share(0, group[0], 0, 1, counts=False))
    return tuple(shares)


def shares_of_step(batch_size: int, num_batches: int, world_size: int) -> tuple[int, int]:
    """Return the most images that a process trains at once, and its number of shares of a step of full batches."""
    dealt, rest = divmod(num_batches, world_size)
    most = batch_size if dealt else -(-batch_size // world_size)
    return most, dealt + rest
