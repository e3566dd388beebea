"""A double of CUDA graphs on a CPU: it records the operations of a function, and computes them again at each replay.

As a graph does, a replay reads and writes the memory that the recording used, and repeats every number that Python
computed: what a step takes from the host is the recording's. As with a GPU, recording computes nothing: what it has
written outside is put back. What a graph refuses is refused: reading a value on the host, random numbers, and torch's
random state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
}


class NotRecordableError(RuntimeError):
    """What a graph cannot contain."""


class _Operations(TorchDispatchMode):
    """Computes and keeps operations: their function, arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.kept: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []
        self.made: set[int] = set()  # the places in memory of what the recording has made
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READS or _draws(func, args, kwargs):
            raise NotRecordableError(f"{func} cannot be recorded")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func._schema.is_mutable:
            for tensor in given:
                place = tensor.untyped_storage().data_ptr()
                if place not in self.made and place not in self.before:
                    self.before[place] = (tensor, tensor.detach().clone())
        result = func(*args, **kwargs)
        places = {tensor.untyped_storage().data_ptr() for tensor in given}
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        new = [tensor for tensor in results if tensor.untyped_storage().data_ptr() not in places]
        self.made |= {tensor.untyped_storage().data_ptr() for tensor in new}
        # All are kept alive: a freed place in memory would become another tensor's.
        self.kept.append((func, args, kwargs, results))
        return result


class RecordedOperations:
    """A `Recorder` that replays operations. `events` are its recordings and replays, by the number of the graph, and
    `contents` the names of the operations in each graph."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.contents: list[list[str]] = []

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record the operations of a function without lasting effects, and return what computes them."""
        number = len(self.contents)
        operations = _Operations()
        try:
            with operations, patch("torch.get_rng_state", _refuse), patch("torch.set_rng_state", _refuse):
                run()
        finally:
            with torch.no_grad():
                for tensor, value in operations.before.values():
                    tensor.copy_(value)
        self.contents.append([func._schema.name for func, *_ in operations.kept])
        self.events.append(("record", number))

        def replay() -> None:
            self.events.append(("replay", number))
            with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
                for func, args, kwargs, results in operations.kept:
                    _compute_again(func, args, kwargs, results)

        return replay


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation draws random numbers; attention does not without dropout."""
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    if "scaled_dot_product" in str(func):
        return bool(given.get("dropout_p", 0.0))
    return torch.Tag.nondeterministic_seeded in func.tags


def _refuse(*_: object) -> None:
    raise NotRecordableError("torch's random state cannot be read while operations are recorded")


def _compute_again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[torch.Tensor]) -> None:
    """Compute an operation into the memory of its first results; views and results in place are there already."""
    again = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    for old, new in zip(results, again, strict=True):
        if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
            old.detach().copy_(new)
