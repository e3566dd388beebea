"""The peak memory of a real forward and backward pass, counted on tensors without memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from modules.adapters import delta_adapter
from modules.families.parts.fused_norms import norms_to_fuse


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all live storages that operations create. Under FakeTensorMode none is real."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, int] = {}
        self.live = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage(), given)
        return result

    def _count(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key = storage._cdata
        if key in self._known or key in given:
            return
        self._known[key] = storage.nbytes()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.live -= self._known.pop(key)


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[Callable[[], None]]:
    """Emulate CUDA's autocast for the operations of these models; yields a function that ends the forward pass.

    The CPU's own autocast leaves norms in 16 bits, which would give other numbers. Casts of trained weights are cached
    until the forward pass ends (PyTorch, "Autocast Op Reference", and `autocast_mode.cpp`).
    """
    remembered: dict[int, torch.Tensor] = {}
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        remembered.clear()

    def cast(value: Any, to: torch.dtype) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == to:
            return value
        if to == dtype and value.requires_grad and value.is_leaf and not is_over:
            if id(value) not in remembered:
                remembered[id(value)] = value.to(to)
            return remembered[id(value)]
        return value.to(to)

    def casting(plain: Callable[..., Any], to: torch.dtype) -> Callable[..., Any]:
        return lambda *args, **kwargs: plain(
            *[cast(a, to) for a in args], **{k: cast(v, to) for k, v in kwargs.items()}
        )

    halves = dict.fromkeys(((functional, name) for name in ("linear", "conv2d", "scaled_dot_product_attention")), dtype)
    singles = dict.fromkeys(((functional, name) for name in ("group_norm", "layer_norm")), torch.float32)
    table: dict[tuple[Any, str], torch.dtype] = {
        **halves,
        (torch, "einsum"): dtype,
        (torch, "matmul"): dtype,
        (torch, "norm"): torch.float32,
        **singles,
    }
    plain = {(module, name): getattr(module, name) for module, name in table}
    is_autocast = delta_adapter._is_autocast
    for (module, name), to in table.items():
        setattr(module, name, casting(plain[module, name], to))
    delta_adapter._is_autocast = lambda x: True
    try:
        yield end
    finally:
        delta_adapter._is_autocast = is_autocast
        for (module, name), function in plain.items():
            setattr(module, name, function)


_PACKED = ("packed", "scales", "down", "up")  # of a quantized layer


def is_adapter(name: str) -> bool:
    """Whether a parameter is an adapter's."""
    return any(part in name for part in ("lora_", "lokr_", "hada_", "oft_", ".dora."))


def give_weights(
    module: nn.Module, *, dtype: torch.dtype, adapter_dtype: torch.dtype, learns: Callable[[str], bool]
) -> None:
    """Replace a meta module's weights, and tables such as Qwen-Image's of positions, by new ones of the active mode."""
    for path, part in module.named_modules():
        for name, old in list(part._parameters.items()):
            if old is not None:
                full = f"{path}.{name}"
                own = adapter_dtype if is_adapter(full) else dtype
                fresh = torch.empty(old.shape, dtype=old.dtype if name in _PACKED else own)
                part._parameters[name] = nn.Parameter(fresh, requires_grad=learns(full))
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
        plain = {name: value for name, value in vars(part).items() if isinstance(value, torch.Tensor)}
        vars(part).update({name: torch.empty(value.shape, dtype=value.dtype) for name, value in plain.items()})


def fuse_norms_as_on_a_gpu(module: nn.Module) -> None:
    """Let the RMS norms of diffusers hold the memory of one kernel of a GPU, which the CPU does not have."""
    for norm in norms_to_fuse(module):
        norm.forward = partial(_FusedNorm.apply, norm.weight)


class _FusedNorm(torch.autograd.Function):
    """Holds as much memory as a fused RMS norm, without values: it saves its input and the scale of each row."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the output (..., channels), in the dtype of x."""
        ctx.save_for_backward(x, torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device), weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        """Return the gradient of x."""
        return None, torch.empty_like(ctx.saved_tensors[0])
