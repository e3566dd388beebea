"""CUDA graphs: the forward and backward pass of a micro-batch is recorded once for its shapes, then replayed.

A step enqueues thousands of kernels, and a fast GPU waits for the host that enqueues them. A graph is enqueued by one
call (PyTorch, "CUDA semantics", section CUDA graphs). It reads its inputs from fixed slots and adds to fixed gradients,
so what follows sees what it always sees: accumulation, and the update, which is recorded by itself (`update_graph.py`).

What is drawn at random, and what the host computes from a batch, is an input: the method draws it before
(`RecordableMethod`). A micro-batch whose shapes are new runs as it is, which is also the warm-up that recording needs;
the next one of these shapes is recorded. A graph holds while all weights stay where they are and the same ones are
trained: sampling that moves a part, or a part that is frozen, drops all graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

import torch
from torch import nn

from modules.system.devices import Device
from modules.system.file_errors import plain_reason
from trainer.methods.protocol import RecordableMethod, StepBatch, StepContext, StepLoss, TrainingMethod
from trainer.step.precision import Precision
from trainer.step.prediction_modes import check_references_left

T = TypeVar("T")

_MAX_GRAPHS = 64
"""Each graph has a node of some kilobytes on the host for every kernel. Further shapes run as they are."""
_KEEPS_MEMORY = torch.__version__.partition("+")[0] == "2.13.0" and torch.version.hip is None
"""Whether torch keeps the memory of a failed capture. AMD's builds of 2.13.0 do not."""


class Recorder(Protocol):
    """Records what a function enqueues on the device."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return a function that computes what `run` enqueues, which is not computed now.

        Raises RuntimeError if something in it cannot be recorded.
        """
        ...


class CudaRecorder:
    """Records with CUDA graphs. All graphs share their memory, which is possible because they never run at once.

    Results must be copied out of that memory before the next replay. A pool whose graphs are all gone takes no further
    one: torch keeps it for the workspaces of cuBLAS, but counts nothing in use ("use_count > 0 INTERNAL ASSERT
    FAILED").
    """

    def __init__(self, device: Device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device.torch)  # one for all: torch shares memory within a stream only
        self._in_use: WeakSet[Callable[[], None]] = WeakSet()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture what `run` enqueues into a graph, and return its replay.

        A failed capture leaves torch as it was: torch itself would stay on the stream of the capture.
        """
        if not self._in_use:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.current_stream(self._stream.device)):
            try:
                # Threads of the loader copy to the device meanwhile, which must not end the capture.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    run()
            except RuntimeError as error:
                self._release(graph)
                # What broke the capture, not that it is broken.
                raise (error.__context__ if isinstance(error.__context__, RuntimeError) else error) from None
        replay = partial(graph.replay)
        self._in_use.add(replay)
        return replay

    def _release(self, graph: torch.cuda.CUDAGraph) -> None:
        """Release the memory of a failed capture, which torch 2.13.0 would keep until the process ends.

        Nothing public does it. Later versions release it with the graph (pytorch/pytorch pull request 190348).
        """
        if _KEEPS_MEMORY and not _is_captured(graph):
            with suppress(RuntimeError):
                torch._C._cuda_releasePool(self._stream.device.index, self._pool)


def _is_captured(graph: torch.cuda.CUDAGraph) -> bool:
    """Return whether a graph is complete, although an error ended the function: then torch releases its memory."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


_NO_LOSS = torch.zeros(())


@dataclass(frozen=True, eq=False)
class _Graph:
    """A recorded pass: its inputs' slots, its result, and the parameters that it reaches."""

    slots: Sequence[torch.Tensor]
    loss: torch.Tensor
    reached: Sequence[nn.Parameter]
    replay: Callable[[], None]


class StepGraphs:
    """The graphs of a run: one for each shape of a micro-batch's inputs.

    `failure` is why recording failed; then every micro-batch runs as it is.
    """

    def __init__(
        self, recorder: Recorder, modules: Sequence[nn.Module], *, report: Callable[[StepGraphs], None] = lambda _: None
    ) -> None:
        """`modules` contain all weights that a pass reads. `report` is called after each recording, and a failure."""
        self.failure = ""
        self.recorder = recorder
        self._modules = modules
        self._report = report
        self._graphs: dict[object, _Graph] = {}
        self._reached: dict[object, list[nn.Parameter]] = {}
        self._gradients: dict[nn.Parameter, torch.Tensor] = {}
        self._tensors: list[torch.Tensor] = []
        self._state: list[tuple[int, bool]] = []

    @property
    def num_graphs(self) -> int:
        """The number of graphs that can be replayed."""
        return len(self._graphs)

    def holds_gradients(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Return whether the gradients of parameters are where the graphs add them."""
        return all(p.grad is self._gradients.get(p) for p in parameters)

    def add_gradients(self, inputs: T, share: float, loss_of: Callable[[T], torch.Tensor]) -> torch.Tensor:
        """Add `share` times the gradients of `loss_of(inputs)` to the parameters, and return the loss, detached.

        `inputs` are tensors on the device, in dataclasses, mappings and tuples, with values that can be hashed: those
        are part of a graph. `loss_of` must compute on the device alone, and draw no random numbers.
        """
        self._drop_outdated()
        key = (share, shapes_of(inputs))
        graph = self._graphs.get(key)
        if graph is None and key in self._reached and len(self._graphs) < _MAX_GRAPHS and not self.failure:
            graph = self._record(key, inputs, share, loss_of)
        if graph is None:
            return self._run(key, inputs, share, loss_of)
        self._attach(graph.reached)
        torch._foreach_copy_(list(graph.slots), list(tensors_in(inputs)))
        graph.replay()
        return graph.loss.clone()  # the next replay of any graph may overwrite it

    def _run(self, key: object, inputs: T, share: float, loss_of: Callable[[T], torch.Tensor]) -> torch.Tensor:
        """Run a micro-batch as it is, and note which parameters it reaches."""
        earlier = {} if key in self._reached else {p: p.grad for p in self._trained_parameters() if p.grad is not None}
        for parameter in earlier:
            parameter.grad = None
        loss = loss_of(inputs)
        (loss * share).backward()
        if key not in self._reached:
            self._reached[key] = [p for p in self._trained_parameters() if p.grad is not None]
        for parameter, gradient in earlier.items():
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
        return loss.detach()

    def _record(self, key: object, inputs: T, share: float, loss_of: Callable[[T], torch.Tensor]) -> _Graph | None:
        slots = [tensor.clone() for tensor in tensors_in(inputs)]
        in_slots, reached = with_tensors(inputs, iter(slots)), self._reached[key]
        losses: list[torch.Tensor] = []

        def run() -> None:
            loss = loss_of(in_slots)
            (loss * share).backward()
            losses.append(loss.detach())

        self._attach(reached)  # the graph adds to these tensors
        try:
            replay = self.recorder.record(run)
        except RuntimeError as error:
            self.failure = plain_reason(error)
            self._drop()
            self._report(self)
            return None
        graph = self._graphs[key] = _Graph(slots, losses[0], reached, replay)
        self._report(self)
        return graph

    def _attach(self, reached: Sequence[nn.Parameter]) -> None:
        """Give parameters their fixed gradients, with the values of those that they have, or zeros."""
        empty = []
        for parameter in reached:
            fixed = self._gradients.get(parameter)
            if fixed is None:
                fixed = self._gradients[parameter] = torch.zeros_like(parameter)
            if parameter.grad is None:
                empty.append(fixed)
            elif parameter.grad is not fixed:
                fixed.copy_(parameter.grad)
            parameter.grad = fixed
        if empty:
            torch._foreach_zero_(empty)

    def _trained_parameters(self) -> list[nn.Parameter]:
        return [t for t in self._tensors if isinstance(t, nn.Parameter) and t.requires_grad]

    def _drop_outdated(self) -> None:
        """Drop all graphs if a weight has moved, or others are trained."""
        if not self._tensors:
            tensors = chain.from_iterable(chain(m.parameters(), m.buffers()) for m in self._modules)
            self._tensors = list(dict.fromkeys(tensors))
        state = [(t.data_ptr(), t.requires_grad) for t in self._tensors]
        if state != self._state:
            self._drop()
            self._state = state

    def _drop(self) -> None:
        self._graphs.clear()
        self._reached.clear()
        self._gradients.clear()


def recorded_loss(
    graphs: StepGraphs, batch: StepBatch, method: TrainingMethod, context: StepContext, precision: Precision
) -> StepLoss | None:
    """Return the loss of a batch whose gradients a graph has added; None, and no gradients, if it cannot be recorded.

    Only a run whose `method` is also a `RecordableMethod` has graphs. Autocast is entered inside of what is recorded:
    it keeps casts until it is left.
    """
    recordable = cast(RecordableMethod, method)
    if graphs.failure:
        return None
    with precision.of_steps():
        drawn = recordable.draw(batch, context)
    if drawn is None:
        return None

    def loss_of(inputs: Any) -> torch.Tensor:
        with precision.of_steps(), check_references_left():
            return recordable.loss_of(inputs, context)

    without = recordable.as_step_loss(_NO_LOSS, batch)
    return replace(without, loss=graphs.add_gradients(drawn, without.share, loss_of))


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value of dataclasses, mappings, tuples and lists, in a fixed order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        yield from chain.from_iterable(tensors_in(getattr(value, f.name)) for f in fields(value))
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(tensors_in(value[name]) for name in sorted(value))
    elif isinstance(value, tuple | list):
        yield from chain.from_iterable(map(tensors_in, value))


def shapes_of(value: object) -> object:
    """Return a hashable value that is equal for values with the same structure, shapes, dtypes and other contents."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    if is_dataclass(value):
        return (type(value), *(shapes_of(getattr(value, f.name)) for f in fields(value)))
    if isinstance(value, Mapping):
        return tuple((name, shapes_of(value[name])) for name in sorted(value))
    if isinstance(value, tuple | list):
        return (type(value), *map(shapes_of, value))
    return value


def with_tensors(value: T, tensors: Iterator[torch.Tensor]) -> T:
    """Return a value with other tensors in place of those that `tensors_in` yields."""
    copy: Any = value
    if isinstance(value, torch.Tensor):
        copy = next(tensors)
    elif is_dataclass(value) and not isinstance(value, type):
        copy = replace(value, **{f.name: with_tensors(getattr(value, f.name), tensors) for f in fields(value)})
    elif isinstance(value, Mapping):
        copy = {name: with_tensors(value[name], tensors) for name in sorted(value)}
    elif isinstance(value, tuple | list):
        copy = type(value)(with_tensors(item, tensors) for item in value)
    result: T = copy
    return result
