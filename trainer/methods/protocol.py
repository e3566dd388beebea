"""What the loop requires of a training method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from modules.data.batch import Batch
from modules.data.conditioning import Conditioning
from modules.families.protocol import ModelFamily
from modules.system.devices import Device


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a method works with: the model, its devices, and the seed its draws derive from.

    `encode(prompts)` gives their conditioning as a batch has it: from the cache, or from the encoders where they learn
    or nothing is cached. A method that works long calls `check()` on its way, which waits while the run is paused and
    raises StopRequested. Within `rollout(step)` the model samples as it is at that step: without gradient and dropout,
    in the run's precision; `loss` needs none of it, since the loop calls it in the run's precision.
    """

    family: ModelFamily
    device: Device
    temp_device: Device
    run_seed: int
    encode: Callable[[Sequence[str]], Conditioning]
    check: Callable[[], None]
    rollout: Callable[[int], AbstractContextManager[None]]


class StepBatch(Protocol):
    """What the loop knows of a batch: the optimizer step it belongs to and its number within that step, both counted
    from 0. They name the random draws.
    """

    @property
    def step(self) -> int:
        """The step, counted over the run."""
        ...

    @property
    def micro_batch(self) -> int:
        """The place within the step."""
        ...


@dataclass(frozen=True, eq=False)
class StepLoss:
    """The loss of a micro-batch: the mean over its samples, shape ().

    The optimizer step is divided by `group_samples`, so that each sample counts the same however the accumulation
    group was cut. `is_last_micro_batch` marks the micro-batch after which the weights move; `zero_gradient_is_legal`
    tells the watchdog that a step without any gradient is no fault (a hinge that is reached, an empty mask). `metrics`
    are means over the samples, by name; those of a step are weighed by the samples of its micro-batches.
    """

    loss: torch.Tensor
    num_samples: int
    group_samples: int
    is_last_micro_batch: bool
    zero_gradient_is_legal: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class TrainingMethod(Protocol):
    """A way to learn. Policy methods roll out in `batches`, reward-gradient methods sample inside `loss`.

    A rollout belongs to one accumulation group of the loader. A method may learn from it in several optimizer steps
    (inner epochs): as many for every group as its record's `steps_per_group` says. The loader's batches of a group
    carry the number of its first step, and leave a gap of that length to the next group's.
    """

    def prepare(self, context: StepContext) -> None:
        """Get ready, before the first step."""
        ...

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[StepBatch]:
        """Yield the batches to learn from, out of the loader's, in the order of their steps.

        A resumed run begins with the loader's accumulation group that it stopped in; batches of steps that are done
        may be yielded again, and are left out.
        """
        ...

    def loss(self, batch: Any, context: StepContext) -> StepLoss:
        """Return the loss of a batch that `batches` yielded, with its graph."""
        ...

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return, by name, each way a step can go, as a method that always goes that way and that may be thrown away.

        A run tries each of them once before its first step, however seldom the dice choose it.
        """
        ...

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return what a run needs that is resumed after so many steps: JSON-safe values, and tensors.

        Tensors are for a rollout that is not learned from to its end by then.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        ...
