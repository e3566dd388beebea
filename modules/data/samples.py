"""The samples of an epoch and their groups, as columns of numbers: a sample becomes an object when it is used.

The processes of a run share an optimizer step by micro-batches, and by images if those do not suffice. The seeds of a
sample depend on its step, its micro-batch and its place there, never on the process that trains it, so a step has the
same noise and timesteps for any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from modules.data.buckets import Size
from modules.system.ranks import Rank

Numbers = NDArray[np.int64]
_AT_ONCE = 4096


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


MicroBatch = tuple[SampleIndex, ...]
AccumulationGroup = tuple[MicroBatch, ...]  # the micro-batches of one optimizer step


class Samples(Sequence[SampleIndex]):
    """Samples in an order: their examples, repeats, resolutions and epochs, (4, N)."""

    def __init__(self, columns_4N: Numbers) -> None:
        self.columns_4N = columns_4N

    @classmethod
    def of(cls, samples: Sequence[SampleIndex]) -> Samples:
        """Return samples as columns."""
        if isinstance(samples, Samples):
            return samples
        rows = [(s.example, s.repeat, s.resolution, s.epoch) for s in samples]
        return cls(np.array(rows, np.int64).reshape(len(rows), 4).T)

    @classmethod
    def concatenate(cls, parts: Sequence[Samples]) -> Samples:
        """Return the samples of several parts, one after the other."""
        return cls(np.concatenate([np.zeros((4, 0), np.int64), *(p.columns_4N for p in parts)], axis=1))

    def take(self, places: Numbers) -> Samples:
        """Return the samples at some places, in their order."""
        return Samples(self.columns_4N[:, places])

    @overload
    def __getitem__(self, place: int) -> SampleIndex: ...

    @overload
    def __getitem__(self, place: slice) -> Samples: ...

    def __getitem__(self, place: int | slice) -> SampleIndex | Samples:
        chosen = self.columns_4N[:, place]
        return Samples(chosen) if isinstance(place, slice) else SampleIndex(*chosen.tolist())

    def __len__(self) -> int:
        return int(self.columns_4N.shape[1])

    def __iter__(self) -> Iterator[SampleIndex]:
        for first in range(0, len(self), _AT_ONCE):
            yield from map(SampleIndex, *self.columns_4N[:, first : first + _AT_ONCE].tolist())


class AccumulationGroups(Sequence[AccumulationGroup]):
    """The optimizer steps of an epoch: groups of micro-batches of samples; equal to a tuple of the same groups.

    Micro-batch `b` has the samples from `starts_B[b]` up to `ends_B[b]`.
    """

    def __init__(self, samples: Samples, starts_B: Numbers, ends_B: Numbers, *, accumulation_steps: int) -> None:
        self._samples = samples
        self._starts_B, self._ends_B = starts_B, ends_B
        self._accumulation_steps = accumulation_steps

    @property
    def num_samples(self) -> int:
        """The number of samples of all groups."""
        return int((self._ends_B - self._starts_B).sum())

    def first_of_each_shape(self, sizes: SizeTable) -> list[AccumulationGroup]:
        """Return the first group of each shape, in order: of each combination of sizes and numbers of samples."""
        if not len(self):
            return []
        columns = self._samples.columns_4N[:, self._starts_B]
        of_batches_B2 = np.stack([sizes.numbers_NR[columns[0], columns[2]], self._ends_B - self._starts_B], axis=1)
        num_missing = -len(self._starts_B) % self._accumulation_steps
        padded = np.concatenate([of_batches_B2, np.full((num_missing, 2), -1, np.int64)])
        _, firsts = np.unique(padded.reshape(len(self), -1), axis=0, return_index=True)
        return [self[int(number)] for number in np.sort(firsts)]

    @overload
    def __getitem__(self, number: int) -> AccumulationGroup: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[AccumulationGroup]: ...

    def __getitem__(self, number: int | slice) -> AccumulationGroup | Sequence[AccumulationGroup]:
        if isinstance(number, slice):
            first, end, step = number.indices(len(self))
            if step != 1:
                return tuple(self[n] for n in range(first, end, step))
            batches = slice(first * self._accumulation_steps, max(first, end) * self._accumulation_steps)
            starts_B, ends_B = self._starts_B[batches], self._ends_B[batches]
            return AccumulationGroups(self._samples, starts_B, ends_B, accumulation_steps=self._accumulation_steps)
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        first = number % len(self) * self._accumulation_steps
        ranges = zip(
            self._starts_B[first : first + self._accumulation_steps].tolist(),
            self._ends_B[first : first + self._accumulation_steps].tolist(),
            strict=True,
        )
        return tuple(tuple(self._samples[start:end]) for start, end in ranges)

    def __len__(self) -> int:
        return -(-len(self._starts_B) // self._accumulation_steps)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, AccumulationGroups | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class SizeTable:
    """The sizes of examples by resolution: the different ones, sorted, and of each sample its number among them.

    `numbers_NR[example, resolution]` is the number of a size.
    """

    def __init__(self, buckets: Sequence[Sequence[Size]]) -> None:
        self.sizes = sorted({size for sizes in {id(s): s for s in buckets}.values() for size in sizes})
        number_of = {size: number for number, size in enumerate(self.sizes)}
        rows: dict[int, list[int]] = {}  # many examples share their sizes
        for sizes in buckets:
            if id(sizes) not in rows:
                rows[id(sizes)] = [number_of[size] for size in sizes]
        num_resolutions = len(buckets[0]) if buckets else 1
        numbers = np.array([rows[id(sizes)] for sizes in buckets], np.int64)
        self.numbers_NR: Numbers = numbers.reshape(len(buckets), num_resolutions)

    @classmethod
    def of(cls, buckets: Sequence[Sequence[Size]] | SizeTable) -> SizeTable:
        """Return the table of the sizes of examples."""
        return buckets if isinstance(buckets, SizeTable) else cls(buckets)

    def size_of(self, sample: SampleIndex) -> Size:
        """Return the size of a sample."""
        size: Size = self.sizes[self.numbers_NR[sample.example, sample.resolution]]
        return size

    def numbers_of(self, samples: Samples) -> Numbers:
        """Return the number of the size of each sample."""
        numbers: Numbers = self.numbers_NR[samples.columns_4N[0], samples.columns_4N[2]]
        return numbers


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

    Whole micro-batches are dealt out while there is one for each process; of each remaining micro-batch every process
    takes a part of the images. The counting shares of all processes are disjoint and together complete. With
    `in_step` all processes have equally many shares: processes that shard the weights must compute each forward pass
    together.
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
    """Return the largest number of images in a share of a batch, and the number of shares, of a process in a step."""
    dealt, rest = divmod(num_batches, world_size)
    most = batch_size if dealt else -(-batch_size // world_size)
    return most, dealt + rest
