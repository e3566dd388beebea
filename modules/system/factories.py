"""Lazy factories: records name the function that builds what they describe, and it is imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def load_factory(reference: str) -> Callable[..., Any]:
    """Return the function that "package.module:function" names. Raises ImportError or AttributeError for none."""
    module, _, function = reference.partition(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return factory
