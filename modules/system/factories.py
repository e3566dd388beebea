"""Imports by name: lazy factories of records, and Python packages that a choice needs and that may be missing."""

from __future__ import annotations

import importlib
import importlib.util
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def load_factory(reference: str) -> Any:
    """Import and return the object that "package.module:name" names; a name may be dotted, such as "Class.method".

    Raises ImportError or AttributeError for a bad name.
    """
    module, _, name = reference.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))


def late(reference: str) -> Callable[[], Any]:
    """Return a function that imports and calls the function which "package.module:name" names.

    Settings use it for facts of registries, which the window does not import before it shows these settings.
    """
    return lambda: load_factory(reference)()


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that a choice needs, by the name it is imported by.

    `distribution` is its name for pip, if different. `is_offered`: it is among the requirements of this program or of
    one of its extras, so that the program can install it.
    """

    name: str
    distribution: str = ""
    is_offered: bool = True

    @property
    def is_installed(self) -> bool:
        """Whether it is installed. It is not imported."""
        return importlib.util.find_spec(self.name) is not None

    @property
    def install(self) -> str:
        """The way to install it, as the beginning of an advice: "Install NAME (command)"."""
        return f"Install {self.pip_name}" + (f" (python -m trainer install {self.pip_name})" if self.is_offered else "")

    @property
    def pip_name(self) -> str:
        """Its name for pip."""
        return self.distribution or self.name
