"""Modules that are imported at their first use, after an earlier `import name` of any library.

Until then a `DeferredModule` is in its place. Libraries import much that hardly any run uses.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any


def defer_import(name: str, *, placeholders: Mapping[str, Any] | None = None) -> None:
    """Let a module be imported at its first use instead.

    `placeholders` are attributes that do not count as a use: classes that nothing can be an instance of before. Nothing
    happens if it is imported already, is not installed or broken, or is not a plain Python module.
    """
    if (spec := deferrable(name)) is not None:
        put_in_place(DeferredModule(spec, placeholders=placeholders or {}))


def deferrable(name: str) -> ModuleSpec | None:
    """Return the spec of a module that can be deferred, otherwise None. Its parent is imported."""
    if name in sys.modules:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:
        return None
    return spec if spec is not None and type(spec.loader) is SourceFileLoader else None


class DeferredModule(ModuleType):
    """Stands for a module until one of its attributes is used, or one of its submodules is imported.

    Unlike that of `importlib.util.LazyLoader` it has the attributes that all modules have: `inspect` reads `__file__`
    of every module there is, which would import it. The submodules `alone` work without the module.
    """

    def __init__(
        self, spec: ModuleSpec, *, placeholders: Mapping[str, Any] | None = None, alone: Collection[str] = ()
    ) -> None:
        super().__init__(spec.name)
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, spec.origin
        if spec.submodule_search_locations is not None:
            self.__path__ = list(spec.submodule_search_locations)
        self._alone = frozenset(alone)
        self._placeholders = dict(placeholders or {})

    @property
    def imported(self) -> ModuleType | None:
        """The module, if it is imported by now."""
        found = sys.modules.get(self.__name__)
        return None if found is self else found

    def import_now(self) -> ModuleType:
        """Import the module, unless it is."""
        if (module := self.imported) is not None:
            return module
        remove(self)  # while a module is imported, its parent does not have it yet
        finder = _WithSubmodules(self)
        sys.meta_path.insert(0, finder)
        try:
            return importlib.import_module(self.__name__)
        except BaseException:
            put_in_place(self)
            raise
        finally:
            sys.meta_path.remove(finder)

    def submodules(self) -> dict[str, Any]:
        """Return those of its submodules `alone` that are imported."""
        return {name: value for name, value in vars(self).items() if name in self._alone}

    def works_without(self, own: str) -> bool:
        """Return whether a submodule can be imported before the module."""
        return own in self._alone

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}", name=attribute, obj=self)
        if self.imported is None:
            if attribute in self._placeholders:
                return self._placeholders[attribute]
            if attribute in self._alone:
                return importlib.import_module(f"{self.__name__}.{attribute}")
        return getattr(self.import_now(), attribute)


def put_in_place(module: DeferredModule) -> None:
    """Let later imports of a module find the deferred one."""
    parent, _, own = module.__name__.rpartition(".")
    sys.modules[module.__name__] = module
    if parent:
        setattr(sys.modules[parent], own, module)
    if not any(isinstance(finder, _ModuleFirst) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ModuleFirst())


def remove(module: DeferredModule) -> None:
    """Undo `put_in_place`."""
    parent, _, own = module.__name__.rpartition(".")
    del sys.modules[module.__name__]
    if vars(sys.modules.get(parent, module)).get(own) is module:
        delattr(sys.modules[parent], own)


class _ModuleFirst(MetaPathFinder):
    """Imports a deferred module before any of its submodules, as Python does with a module that is not deferred."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a submodule that was loaded with its module, otherwise None."""
        parent, _, own = fullname.rpartition(".")
        module = sys.modules.get(parent)
        if not isinstance(module, DeferredModule) or module.works_without(own):
            return None
        module.import_now()
        loaded = sys.modules.get(fullname)
        return None if loaded is None else ModuleSpec(fullname, _AlreadyLoaded(loaded))


class _AlreadyLoaded(Loader):
    """Returns a module that was loaded while it was looked for."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give it its own spec back."""
        module.__spec__ = self._spec


class _WithSubmodules(MetaPathFinder):
    """Finds a module that was deferred, and loads it with those submodules that were imported without it."""

    def __init__(self, deferred: DeferredModule) -> None:
        self._deferred = deferred

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module, otherwise None."""
        if fullname != self._deferred.__name__:
            return None
        origin = str(self._deferred.__file__)
        loader = _SubmodulesFirst(fullname, origin, self._deferred.submodules())
        places = list(self._deferred.__path__) if "__path__" in vars(self._deferred) else None
        return importlib.util.spec_from_file_location(
            fullname, origin, loader=loader, submodule_search_locations=places
        )


class _SubmodulesFirst(SourceFileLoader):
    """Loads a module that has some of its submodules already."""

    def __init__(self, name: str, path: str, submodules: Mapping[str, Any]) -> None:
        super().__init__(name, path)
        self._submodules = submodules

    def exec_module(self, module: ModuleType) -> None:
        """Load the module."""
        vars(module).update(self._submodules)
        super().exec_module(module)
