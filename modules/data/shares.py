"""How the processes of a run share an optimizer step: by micro-batches, and by images if those do not suffice.

The seeds of a sample depend on its step, its micro-batch and its place there, never on the process that trains it, so a
step has the same noise and timesteps for any number of processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from modules.data.samples import AccumulationGroup, MicroBatch
from modules.system.ranks import Rank


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
