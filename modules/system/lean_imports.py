"""Importing a library without the optional packages that it would import as well, though nothing here needs them.

diffusers, transformers and peft import what they find, such as SciPy and bitsandbytes: more than a second, for losses
of object detection and layers that no run has. What is hidden here, in one thread and for the time of an import, is not
installed as far as these libraries can see; other code imports it as always.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextmanager
def packages_hidden(names: Collection[str]) -> Iterator[None]:
    """Let imports of this thread find none of these packages, unless they are imported already.

    `import name` raises ModuleNotFoundError, and `importlib.util.find_spec` returns None, which is how libraries test
    for an optional package. Other threads are not affected.
    """
    thread, is_active, plain_find_spec = threading.get_ident(), True, importlib.util.find_spec

    def is_hidden(name: str) -> bool:
        top = name.partition(".")[0]
        return is_active and top in names and top not in sys.modules and threading.get_ident() == thread

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if is_hidden(name) else plain_find_spec(name, package)

    class Hidden(MetaPathFinder):
        def find_spec(
            self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
        ) -> ModuleSpec | None:
            if is_hidden(fullname):
                raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
            return None

    finder = Hidden()
    sys.meta_path.insert(0, finder)
    importlib.util.find_spec = find_spec
    try:
        yield
    finally:
        is_active = False  # a library may have kept the function
        importlib.util.find_spec = plain_find_spec
        sys.meta_path.remove(finder)


@contextmanager
def collection_off() -> Iterator[None]:
    """Switch garbage collection off for the time of an import, which makes many objects and hardly any garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
