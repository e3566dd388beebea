"""The number format of the mathematics: autocast, the loss scaler of float16, TF32."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import group_norm, layer_norm

from modules.system.devices import Device

# Torch reads it at the first matrix product on a GPU. Without one of these values it refuses them in deterministic mode
# (NVIDIA's cuBLAS documentation, "Results reproducibility").
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE_WORKSPACES = (":4096:8", ":16:8")


@dataclass(frozen=True, slots=True)
class Precision:
    """What a config's precision means on a device."""

    name: str
    device: Device

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype matrix products are done in, and in which batches arrive."""
        match self.name:
            case "bfloat16":
                return torch.bfloat16
            case "float16":
                return torch.float16
            case _:
                return torch.float32

    @property
    def tf32(self) -> Literal["none", "convolutions", "all"]:
        """What `process_settings` allows to be rounded to TF32 where the device computes in float32."""
        if self.name == "tfloat32":
            return "all"
        return "none" if self.name == "float32" or self.device.is_cpu else "convolutions"

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context every forward pass of a run is done in."""
        if self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def prepare(self, part: nn.Module) -> None:
        """Have the norms of a part computed in float32 where a CPU would refuse them, in place.

        That is where the weights are in one 16-bit format and the precision is the other. On a GPU autocast computes
        every norm in float32; on a CPU it leaves them alone, and the kernels take activations in one 16-bit format
        with weights in the other for an error ("mixed dtype").
        """
        if self.device.type != "cpu" or self.compute_dtype == torch.float32:
            return
        for layer in part.modules():
            if isinstance(layer, nn.LayerNorm | nn.GroupNorm) and _is_other_16_bit(layer, self.compute_dtype):
                layer.forward = partial(_norm_in_float32, layer)  # type: ignore[method-assign]

    def make_scaler(self) -> torch.amp.GradScaler:
        """Return the loss scaler: at work for float16, whose gradients would vanish, else passing all through."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "float16")


def _is_other_16_bit(layer: nn.LayerNorm | nn.GroupNorm, compute_dtype: torch.dtype) -> bool:
    weight: torch.Tensor | None = layer.weight  # None without elementwise affine
    return weight is not None and weight.dtype.itemsize == 2 and weight.dtype != compute_dtype


def _norm_in_float32(layer: nn.LayerNorm | nn.GroupNorm, x: torch.Tensor) -> torch.Tensor:
    """Return the norm of x in float32; the weights are read at each call, as they may be on their way."""
    weight, bias = layer.weight.float(), None if layer.bias is None else layer.bias.float()
    if isinstance(layer, nn.LayerNorm):
        return layer_norm(x.float(), layer.normalized_shape, weight, bias, layer.eps)
    return group_norm(x.float(), layer.num_groups, weight, bias, layer.eps)


@contextlib.contextmanager
def process_settings(*, num_threads: int, precision: str, deterministic: bool) -> Iterator[None]:
    """Set what torch keeps per process, for as long as a run lasts; nothing leaks into the next one.

    With the precision "float32" nothing is computed in TF32, to which torch else rounds what convolutions take on a
    GPU; with "tfloat32" the products of matrices are, too. In a deterministic run an operation without a
    deterministic implementation raises RuntimeError. With warnings only, attention's backward pass would stay
    nondeterministic: torch chooses its deterministic form only where it has to.
    """
    threads = torch.get_num_threads()
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(num_threads)
    torch.set_float32_matmul_precision("high" if precision == "tfloat32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        with _deterministic(deterministic):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolutions


@contextlib.contextmanager
def _deterministic(is_on: bool) -> Iterator[None]:
    """Switch torch's deterministic algorithms on or off for a while, with the environment variable they need."""
    was_on = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(CUBLAS_WORKSPACE)
    if is_on and workspace not in _REPEATABLE_WORKSPACES:
        os.environ[CUBLAS_WORKSPACE] = _REPEATABLE_WORKSPACES[0]
    torch.use_deterministic_algorithms(is_on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_on, warn_only=only_warned)
        if workspace is None:
            os.environ.pop(CUBLAS_WORKSPACE, None)
        else:
            os.environ[CUBLAS_WORKSPACE] = workspace
