"""The update of a step as a CUDA graph of its own, replayed after the graph of the step's last micro-batch.

It contains the norms of the gradients, the decision to skip the step, clipping, and the optimizer's step. One graph
serves batches of all sizes, accumulated or not: their graphs leave the gradients in the same places. What differs from
step to step is read on the device: the loss from a slot, the learning rates from tensors, the count of steps from the
optimizer's state.

Torch's fused optimizers read a learning rate on a GPU in float32. In a run that records its updates all steps use rates
rounded to float32 (by 3e-8 of their value at most), so that a step is the same whether it is recorded or not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from modules.optim.param_groups import TrainGroup, named_parameters, optimizer_parameters
from modules.system.file_errors import plain_reason
from trainer.step.graphs import StepGraphs

Norms = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""The norm of all gradients, and the norms by unit, of shape ()."""


@dataclass(frozen=True, eq=False)
class _Update:
    """A recorded update: the places in memory that it uses, the slot of the loss, and its results."""

    places: Sequence[int]
    loss: torch.Tensor
    norms: Norms
    replay: Callable[[], None]


class UpdateGraph:
    """Replays the updates of a run whose optimizer skips a step on the device (`OptimizerSpec.skips_on_device`).

    `failure` is why recording failed; then every update runs as it is. `num_recorded` counts the recordings.
    """

    def __init__(
        self,
        graphs: StepGraphs,
        groups: Sequence[TrainGroup],
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        report: Callable[[UpdateGraph], None] = lambda _: None,
    ) -> None:
        """Move the learning rates to the device. `report` is called if recording fails."""
        self.failure = ""
        self.num_recorded = 0
        self._graphs = graphs
        self._groups = groups
        self._optimizer = optimizer
        self._report = report
        self._update: _Update | None = None
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)

    def replay(self, loss: torch.Tensor, enqueue: Callable[[torch.Tensor], Norms]) -> Norms | None:
        """Update the weights as `enqueue(loss)` would, and return its norms, valid until the next replay of any graph.

        Returns None, and changes nothing, if the gradients are not where the graphs of micro-batches leave them, if the
        optimizer has no state yet, or if recording fails.
        """
        if self.failure or (places := self._places()) is None:
            return None
        if self._update is None or self._update.places != places:
            self._update = None  # frees its memory for the next one
            self._update = self._record(places, loss, enqueue)
        if self._update is None:
            return None
        self._update.loss.copy_(loss)
        self._update.replay()
        return self._update.norms

    def _record(
        self, places: Sequence[int], loss: torch.Tensor, enqueue: Callable[[torch.Tensor], Norms]
    ) -> _Update | None:
        slot, norms = loss.clone(), list[Norms]()
        # Running the step in Python moves gradients to master weights and drops them; a replay does not.
        holders = [*named_parameters(self._groups).values(), *optimizer_parameters(self._groups).values()]
        gradients = [(holder, holder.grad) for holder in holders]
        try:
            with _capturable(self._optimizer):
                replay = self._graphs.recorder.record(lambda: norms.append(enqueue(slot)))
        except RuntimeError as error:
            self.failure = plain_reason(error)
            self._report(self)
            return None
        finally:
            for holder, gradient in gradients:
                holder.grad = gradient
        self.num_recorded += 1
        return _Update(places, slot, norms[0], replay)

    def _places(self) -> list[int] | None:
        """Return the places in memory of all that an update reads and writes; None if it cannot be recorded now."""
        weights, updated = named_parameters(self._groups), optimizer_parameters(self._groups)
        with_gradient = {name: weight for name, weight in weights.items() if weight.grad is not None}
        if not with_gradient or not self._graphs.holds_gradients(with_gradient.values()):
            return None
        places = []
        for name, weight in with_gradient.items():
            state = self._optimizer.state.get(updated[name])
            if not state:
                return None
            tensors = (weight, weight.grad, updated[name], *state.values())
            places += [tensor.data_ptr() for tensor in tensors if isinstance(tensor, torch.Tensor)]
        return places


@contextlib.contextmanager
def _capturable(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Mark an optimizer as one that can be recorded, without which torch refuses. A fused step is the same with it."""
    for group in optimizer.param_groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in optimizer.param_groups:
            group["capturable"] = False
