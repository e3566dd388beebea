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
from typing import Any


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


def defer_import(name: str) -> None:
    """Let a submodule be imported at its first use instead, after a later `import package.name` of any library.

    Nothing happens if it is imported already, or is not installed or broken.
    """
    if name in sys.modules:
        return
    parent, _, own = name.rpartition(".")
    try:
        package, spec = importlib.import_module(parent), importlib.util.find_spec(name)
    except ImportError:
        return
    if spec is not None:
        sys.modules[name] = module = _DeferredModule(spec)
        setattr(package, own, module)


class _DeferredModule(ModuleType):
    """Stands for a module until one of its attributes is used.

    Unlike that of `importlib.util.LazyLoader` it has the attributes that all modules have: `inspect` reads `__file__`
    of every module there is, which would import it.
    """

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec.name)
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, spec.origin
        if spec.submodule_search_locations is not None:
            self.__path__ = list(spec.submodule_search_locations)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}", name=attribute, obj=self)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)


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
