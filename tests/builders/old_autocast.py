"""Autocast's cache of cast weights before torch 2.11: casts made under `no_grad` stay cached, without their graph.

Newer versions create every cached cast with its graph (pytorch/pytorch#165068), so the bug is emulated here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_CAST = (functional.linear, functional.conv2d)


class _OldCache(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.casts: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _CAST and torch.is_autocast_enabled("cpu"):
            args = tuple(self._cast(a) for a in args)
        return func(*args, **(kwargs or {}))

    def _cast(self, argument: Any) -> Any:
        if not isinstance(argument, torch.nn.Parameter) or not argument.requires_grad:
            return argument
        if id(argument) not in self.casts:
            self.casts[id(argument)] = argument.to(torch.get_autocast_dtype("cpu"))
        return self.casts[id(argument)]


@contextmanager
def old_autocast_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cast the weights of linear layers and convolutions as torch 2.9 and 2.10 do, on the CPU, in this thread."""
    cache = _OldCache()
    clear = torch.clear_autocast_cache

    def clear_both() -> None:  # torch calls it by this name wherever the outermost autocast ends
        cache.casts.clear()
        clear()

    monkeypatch.setattr(torch, "clear_autocast_cache", clear_both)
    with cache:
        yield
