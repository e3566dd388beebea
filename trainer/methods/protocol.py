"""The protocol of training methods, which the loop uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from modules.data.batch import Batch
from modules.data.conditioning import Conditioning
from modules.families.protocol import ModelFamily
from modules.memory.frozen_copy import FrozenCopy
from modules.system.devices import Device
from trainer.events import Event
from trainer.ranks import ALONE, Ranks


@dataclass(frozen=True, slots=True)
class StepContext:
    """The context of a method: the model, its devices, and the seed that all its random numbers derive from.

    `encode(prompts)` returns their conditioning like a batch's: from the cache, or from the encoders if they are
    trained or nothing is cached. A method with long work calls `check()` in between, which waits while the run is
    paused and raises StopRequested. Within `rollout(step)` the model samples with its current weights: without gradient
    and dropout, in the run's precision; `loss` does not need it, because the loop calls it in the run's precision.
    Within `prior()` the model is the original one, before any training, also without gradient and dropout; no graph
    through its weights may be alive there. `frozen_copy()` returns a copy of the trained weights as they are now, and
    within `reference(copy)` the model has those, under the same conditions. `run_dir` is the run's folder. `ranks` are
    the processes of the run, which share what a method samples.
    """

    family: ModelFamily
    device: Device
    temp_device: Device
    run_seed: int
    encode: Callable[[Sequence[str]], Conditioning]
    check: Callable[[], None]
    rollout: Callable[[int], AbstractContextManager[None]]
    prior: Callable[[], AbstractContextManager[None]]
    frozen_copy: Callable[[], FrozenCopy]
    reference: Callable[[FrozenCopy], AbstractContextManager[None]]
    emit: Callable[[Event], None]
    run_dir: Path
    ranks: Ranks = ALONE


class StepBatch(Protocol):
    """The position of a batch: its optimizer step and its number within that step, both counted from 0.

    All random numbers derive from them.
    """

    @property
    def step(self) -> int:
        """The step, counted over the run."""
        ...

    @property
    def micro_batch(self) -> int:
        """The number within the step."""
        ...


@dataclass(frozen=True, eq=False)
class StepLoss:
    """The loss of a micro-batch: the mean over its samples, shape ().

    The optimizer step is divided by `group_samples`, so that each sample counts the same however the accumulation group
    is split. `is_last_micro_batch` marks the micro-batch after which the weights are updated; `zero_gradient_is_legal`
    means that a step without any gradient is not an error (a hinge that is reached, an empty mask), for the watchdog.
    `metrics` are means over the samples, by name (`modules/objectives/metrics.py`); the metrics of a step are weighted
    by the samples of its micro-batches. Tensors of shape () are read when the step ends, so that no micro-batch waits
    for the device. `num_images` is how many images it adds to those that the run has trained on; None: as many as
    samples. A method that trains on an image in several passes counts it once.
    """

    loss: torch.Tensor
    num_samples: int
    group_samples: int
    is_last_micro_batch: bool
    zero_gradient_is_legal: bool = False
    metrics: Mapping[str, float | torch.Tensor] = field(default_factory=dict)
    num_images: int | None = None

    @property
    def share(self) -> float:
        """Its share of the samples of the optimizer step."""
        return self.num_samples / self.group_samples


class RecordableMethod(Protocol):
    """A method whose loss can be recorded as a CUDA graph (`trainer/step/graphs.py`), divided into two halves."""

    def draw(self, batch: Any, context: StepContext) -> Any | None:
        """Return all that the loss of a batch is computed from: tensors on the device, random numbers among them.

        They may be in dataclasses, mappings and tuples, with other values that can be hashed. None if the loss of this
        batch cannot be computed from such values alone.
        """
        ...

    def loss_of(self, drawn: Any, context: StepContext) -> torch.Tensor:
        """Return the loss, of shape (), computed on the device alone: nothing is read from it or copied to it."""
        ...

    def as_step_loss(self, loss: torch.Tensor, batch: Any) -> StepLoss:
        """Return a loss of a batch with what `loss` returns besides."""
        ...


class TrainingMethod(Protocol):
    """A training method. Policy methods roll out in `batches`, reward-gradient methods sample inside `loss`.

    A rollout belongs to one accumulation group of the loader. A method may train on it in several optimizer steps
    (inner epochs), `steps_per_group` of its record for every group. The loader's batches of a group have the number of
    its first step, and the numbers of the next group continue after all steps of this one.
    """

    def prepare(self, context: StepContext) -> None:
        """Prepare for training, before the first step."""
        ...

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[StepBatch]:
        """Yield the training batches made from the loader's batches, in the order of their steps.

        A resumed run begins with the accumulation group in which it stopped; batches of finished steps may be yielded
        again, and are skipped.
        """
        ...

    def loss(self, batch: Any, context: StepContext) -> StepLoss:
        """Return the loss of a batch that `batches` yielded, with its graph."""
        ...

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return, by name, each branch of a step as a method that always takes it and that can be discarded.

        A run tries each of them once before its first step, whatever its probability.
        """
        ...

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the state for a run that is resumed after `step` steps: JSON-safe values, and tensors.

        Tensors are for a rollout that is not completely used for training by then.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        ...
