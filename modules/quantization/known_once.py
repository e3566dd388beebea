"""Facts of a device that are found out once, also while a compiler reads the code that needs them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., object])


def known_once(function: Function) -> Function:
    """Compute each result of a function once; it is a constant of what torch compiles. `forget()` forgets them."""
    once = functools.cache(function)

    @functools.wraps(function)
    def result(*args: object) -> object:
        return once(*args)

    result.forget = once.cache_clear  # type: ignore[attr-defined]
    marked: Function = torch.compiler.assume_constant_result(result)
    return marked
