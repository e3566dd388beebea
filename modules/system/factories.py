"""Lazy factories: a record names the function that builds the object it describes; it is imported when called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def load_factory(reference: str) -> Callable[..., Any]:
    """Return the function that "package.module:function" names. Raises ImportError or AttributeError for a bad name."""
    module, _, function = reference.partition(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return factory
