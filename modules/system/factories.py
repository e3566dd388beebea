"""Lazy factories: a record names the function that builds the object it describes; it is imported when called."""

from __future__ import annotations

import importlib
import operator
from typing import Any


def load_factory(reference: str) -> Any:
    """Import and return the object that "package.module:name" names; a name may be dotted, such as "Class.method".

    Raises ImportError or AttributeError for a bad name.
    """
    module, _, name = reference.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))
