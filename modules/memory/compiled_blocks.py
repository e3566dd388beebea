"""Compiling the repeated blocks of the denoiser with torch.compile ("regional compilation").

Each block is compiled alone: blocks of the same structure share their code, so a UNet takes a fraction of the time that
compiling it as a whole takes, and checkpointing and offloading stay outside of what is compiled. Shapes are static: the
code for a batch does not depend on which shapes came before, so a resumed run computes the same bits.

Only passes with gradients are compiled. Samples, validation and references run without gradients in other modes and
sizes: they would compile for longer than they save, and so no compiled code of the trained model can be used for a
reference.

A block that cannot be compiled runs as it is. Once the step has ended, all blocks do (`turn_off`): not earlier, because
a backward pass must recompute a block just as it was computed.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from modules.system.file_errors import plain_reason

Forward = Callable[..., Any]

INDUCTOR = "inductor"
# torch stops compiling a function after eight versions of it: a UNet has more kinds of blocks alone, and each size of
# images is a version of them.
_MAX_VERSIONS = 4096
_WHAT_IS_MISSING = (
    ("C++ compiler", "it needs a C++ compiler, and none was found"),
    ("C compiler", "it needs a C compiler, and none was found"),
    ("Python.h", "it needs the header files of Python, which are not installed"),
    ("triton", "it needs a working Triton, which was not found"),
)


@dataclass(frozen=True, slots=True)
class CompileCounts:
    """The state of compilation: blocks in use, graphs (shared by blocks of one structure), and the time it took."""

    num_blocks: int = 0
    num_graphs: int = 0
    seconds: float = 0.0


class Compilation:
    """The compiled blocks of a run's denoiser: their counts, and why compiling failed, if it did."""

    def __init__(self, clock: Callable[[], float], *, backend: str = INDUCTOR) -> None:
        """`clock` returns seconds; `backend` is one of torch's names."""
        self.failure = ""
        self._clock = clock
        self._backend_name = backend
        self._blocks: list[CompiledForward] = []
        self._num_graphs = 0
        self._seconds = 0.0
        self._is_on = True

    @property
    def counts(self) -> CompileCounts:
        """The state of compilation so far."""
        return CompileCounts(sum(block.is_compiled for block in self._blocks), self._num_graphs, self._seconds)

    @property
    def is_on(self) -> bool:
        """Whether blocks are compiled."""
        return self._is_on

    def turn_off(self) -> None:
        """Run every block without compiled code from now on. Only between steps: see above."""
        self._is_on = False

    def turn_on(self) -> None:
        """Compile blocks from now on, and use their compiled code. Only between steps."""
        self._is_on = True

    def compile_in_place(self, blocks: Sequence[nn.Module]) -> None:
        """Compile the forward pass of each block when it first runs with gradients. Names of weights do not change."""
        functions: dict[type[nn.Module], Forward] = {}
        for block in blocks:
            kind = type(block)
            if kind not in functions:  # of the class, so that blocks of one structure share their code
                functions[kind] = compile_by_size(kind.forward, backend=self._compile_graph)
            wrapped = CompiledForward(block.forward, functools.partial(functions[kind], block), self)
            block.forward = wrapped
            self._blocks.append(wrapped)

    def close(self) -> None:
        """Drop all compiled code, at the end of a run: torch keeps it as long as the process lives."""
        self._blocks.clear()
        torch.compiler.reset()

    def run(self, compiled: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run compiled code, which compiles it at its first run. Raises CompileError if that fails."""
        num_graphs, started = self._num_graphs, self._clock()
        try:
            return compiled(*args, **kwargs)
        except RuntimeError as error:
            if not self._fails_to_compile(error, is_new=self._num_graphs > num_graphs):
                raise
            raise CompileError(self.failure or _reason(error)) from error
        finally:
            if self._num_graphs > num_graphs:
                self._seconds += self._clock() - started

    def _compile_graph(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        """Compile one graph and its backward pass: torch's backend with the settings that this needs."""
        self._num_graphs += 1
        # The backward pass now, too: an error must show here. The masks of dropout are the plain block's. Torch would
        # measure on a GPU whether it pads the operands of products: code that a backward pass compiles anew could then
        # save other tensors than the forward pass did, which checkpointing refuses, and a resumed run could differ.
        with (
            torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
            torch._inductor.config.patch(fallback_random=True, shape_padding=False),
        ):
            return torch._dynamo.lookup_backend(self._backend_name)(graph, inputs)

    @staticmethod
    def _fails_to_compile(error: RuntimeError, *, is_new: bool) -> bool:
        """Return whether an error is one of compiling: torch's own, or any at the first use of new code."""
        if isinstance(error, torch.OutOfMemoryError):
            return False
        return is_new or isinstance(error, torch._dynamo.exc.TorchDynamoException)


class CompileError(Exception):
    """A block could not be compiled; the message is the reason, to follow "because"."""


class CompiledForward:
    """The forward pass of a block: compiled where gradients are recorded."""

    def __init__(self, plain: Forward, compiled: Forward, owner: Compilation) -> None:
        self.plain = plain
        self.is_compiled = False
        self._compiled = compiled
        self._owner = owner
        self._has_failed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner = self._owner
        if not owner.is_on or self._has_failed or not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        if owner.failure and not self.is_compiled:  # as the other blocks will from the next step on
            self._has_failed = True
            return self.plain(*args, **kwargs)
        try:
            result = owner.run(self._compiled, args, kwargs)
        except CompileError as error:
            owner.failure = owner.failure or str(error)
            self._has_failed, self.is_compiled = True, False
            return self.plain(*args, **kwargs)
        self.is_compiled = True
        return result


def compile_by_size(function: Forward, backend: str | Callable[..., Any] = INDUCTOR) -> Forward:
    """Return a function that compiles `function` for each size of its inputs, however many there are."""
    compiled = torch.compile(function, backend=backend, dynamic=False)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():  # else it becomes a part of other code, which sees to it
            _allow_versions()
        return compiled(*args, **kwargs)

    return run


def _allow_versions() -> None:
    """Let torch keep the code of all sizes and structures in the thread that calls this.

    Torch's config applies to one thread alone. On a GPU autograd recomputes checkpointed blocks in a thread of its own,
    where torch would stop at its default number, and silently run further sizes without compiling. (`recompile_limit`
    of `torch.compile`, new in 2.12, is only one of the two limits.)
    """
    for limit in ("recompile_limit", "accumulated_recompile_limit"):
        if getattr(torch._dynamo.config, limit) < _MAX_VERSIONS:
            setattr(torch._dynamo.config, limit, _MAX_VERSIONS)


def _reason(error: BaseException) -> str:
    """Return why compiling failed, as the end of a sentence, from the first cause of an error."""
    while (cause := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = cause
    text = "".join(traceback.format_exception_only(error))
    for sign, reason in _WHAT_IS_MISSING:
        if sign.lower() in text.lower():
            return reason
    return f"of an error: {plain_reason(error)[:200]}"
