"""What the loop asks of a training method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from modules.data.batch import Batch
from modules.data.conditioning import Conditioning
from modules.families.protocol import ModelFamily
from modules.system.devices import Device


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a method works with: the model, where it is and where things rest, and the seed its draws derive from.

    `encode(prompts)` gives their conditioning as a batch has it: from the cache, or from the encoders where they learn
    or nothing is cached. A method that works long calls `check()` on its way, which waits while the run is paused and
    raises StopRequested.
    """

    family: ModelFamily
    device: Device
    temp_device: Device
    run_seed: int
    encode: Callable[[Sequence[str]], Conditioning]
    check: Callable[[], None]


@dataclass(frozen=True, eq=False)
class StepLoss:
    """The loss of a micro-batch: the mean over its samples, shape ().

    The optimizer step is divided by `group_samples`, so that each sample counts the same however the window was cut.
    `is_last_micro_batch` marks the micro-batch after which the weights move; `zero_gradient_is_legal` tells the watch
    that a step without any gradient is no fault (a hinge that is reached, an empty mask). `metrics` are means over the
    samples, by name; those of a step are weighed by the samples of its micro-batches.
    """

    loss: torch.Tensor
    num_samples: int
    group_samples: int
    is_last_micro_batch: bool
    zero_gradient_is_legal: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class TrainingMethod(Protocol):
    """A way to learn. Policy methods roll out in `batches`, reward-gradient methods sample inside `loss`."""

    def prepare(self, context: StepContext) -> None:
        """Get ready, before the first step."""
        ...

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches to learn from, out of the loader's."""
        ...

    def loss(self, batch: Batch, context: StepContext) -> StepLoss:
        """Return the loss of a batch, with its graph."""
        ...

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return, by name, each way a step can go, as a method that always goes that way and that may be thrown away.

        A run tries each of them once before its first step, however seldom the dice choose it.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, JSON-safe."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        ...
