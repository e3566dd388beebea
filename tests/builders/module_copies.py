"""Copies modules several times faster than `copy.deepcopy`, which takes a tenth of the time of small runs."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import nn


class ModuleCopies:
    """Makes copies of a module as it is now: its objects are pickled once, its tensors are cloned for each copy."""

    def __init__(self, module: nn.Module) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(module)
        self._objects, self.tensors = file.getvalue(), [tensor.clone() for tensor in pickler.tensors.values()]
        self._are_parameters = [isinstance(tensor, nn.Parameter) for tensor in pickler.tensors.values()]

    def make(self) -> Any:
        """Return a copy, which shares nothing with the others."""
        tensors = [
            nn.Parameter(tensor.detach().clone(), tensor.requires_grad) if is_parameter else tensor.clone()
            for tensor, is_parameter in zip(self.tensors, self._are_parameters, strict=True)
        ]
        return _Unpickler(io.BytesIO(self._objects), tensors).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[int, torch.Tensor] = {}
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        self.tensors[id(obj)] = obj
        return self._places.setdefault(id(obj), len(self._places))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]
