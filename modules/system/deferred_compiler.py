"""torch's compiler, imported when something is compiled.

transformers, while it is imported, and torch's optimizers in every step ask for `torch._dynamo`: half a second of
imports, with SymPy and much of `torch.distributed`, to mark functions for a compiler that most runs never use. Until
something else of it is used, `DeferredCompiler` notes the marks, and passes them on then.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from modules.system.deferred_modules import DeferredModule, deferrable, put_in_place

# Its submodules that work without it: gradient checkpointing reads the first, transformers' masks the second.
_ALONE = ("config", "_trace_wrapped_higher_order_op")


def defer_compiler() -> None:
    """Let `torch._dynamo` be imported at its first use. Nothing happens if it is imported already. Imports torch."""
    if (spec := deferrable("torch._dynamo")) is not None:
        put_in_place(DeferredCompiler(spec))


class DeferredCompiler(DeferredModule):
    """Stands for `torch._dynamo` until something other than these methods is used, which imports it.

    Outside compiled code the compiler's own do nothing either but call the function.
    """

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec, alone=_ALONE)
        self._marks: list[tuple[str, Any]] = []

    def graph_break(self, *values: Any, **options: Any) -> None:
        """End the graph that is being compiled."""
        if (compiler := self.imported) is not None:
            compiler.graph_break(*values, **options)

    def allow_in_graph(self, fn: Any) -> Any:
        """Let compiled code call a function as it is."""
        return self._marked("allow_in_graph", fn)

    def assume_constant_result(self, fn: Any) -> Any:
        """Let compiled code contain the result of a function."""
        return self._marked("assume_constant_result", fn)

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """Return a function that is never compiled; without one, a decorator."""
        if self.imported is None and fn is None:
            return functools.partial(self.disable, recursive=recursive, **options)
        if self.imported is None and inspect.isfunction(fn):
            return self._uncompiled(fn, lambda: self.import_now().disable(fn, recursive, **options))
        return self.import_now().disable(fn, recursive, **options)

    def import_now(self) -> ModuleType:
        """Import the compiler, unless it is, and pass the marks on."""
        if (compiler := self.imported) is not None:
            return compiler  # perhaps not completely: its modules import each other
        compiler = super().import_now()
        marks, self._marks = self._marks, []
        for mark, fn in marks:
            getattr(compiler, mark)(fn)
        return compiler

    def _uncompiled(self, fn: Callable[..., Any], disabled: Callable[[], Any]) -> Callable[..., Any]:
        now: Callable[..., Any] | None = None

        @functools.wraps(fn)
        def call(*values: Any, **options: Any) -> Any:
            nonlocal now
            if now is None and self.imported is not None:
                now = disabled()
            return (now or fn)(*values, **options)

        # As the compiler itself marks what it must not enter.
        vars(call).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=None, _torchdynamo_orig_callable=fn)
        return call

    def _marked(self, mark: str, fn: Any) -> Any:
        if (compiler := self.imported) is not None:
            return getattr(compiler, mark)(fn)
        self._marks.append((mark, fn))
        return fn
