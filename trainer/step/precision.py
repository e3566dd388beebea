"""The precision of a run: autocast, the gradient scaler of float16, TF32."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import group_norm, layer_norm

from modules.system.devices import Device

# Torch reads it at the first matrix product on a GPU. In deterministic mode torch raises an error unless it has one of
# these values (NVIDIA's cuBLAS documentation, "Results reproducibility").
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
REPEATABLE_WORKSPACES = (":4096:8", ":16:8")
_FEW_SIZES = 4


@dataclass(frozen=True, slots=True)
class Precision:
    """A config's precision on a device."""

    name: str
    device: Device
    autocast_cache: bool = True
    """Whether autocast keeps the 16-bit copies of float32 weights until its context ends."""
    steps_autocast: bool = True
    """Whether the passes of training steps run under autocast (`modules/config/usage.py:needs_autocast`)."""

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of matrix products and of batches."""
        match self.name:
            case "bfloat16":
                return torch.bfloat16
            case "float16":
                return torch.float16
            case _:
                return torch.float32

    @property
    def tf32(self) -> Literal["none", "convolutions", "all"]:
        """The operations that `process_settings` allows to use TF32 when the device computes in float32."""
        if self.name == "tfloat32":
            return "all"
        return "none" if self.name == "float32" or self.device.is_cpu else "convolutions"

    def of_steps(self, *, keeps_casts: bool = True) -> AbstractContextManager[object]:
        """Return the context of the trained model's passes: autocast, unless all of it is in the precision's dtype.

        `keeps_casts` is as in `autocast`.
        """
        return self.autocast(keeps_casts=keeps_casts) if self.steps_autocast else nullcontext()

    def autocast(self, *, keeps_casts: bool = True) -> AbstractContextManager[object]:
        """Return the autocast context of passes through parts whose weights may have any dtype.

        Without `keeps_casts` weights are cast anew at each use, for a pass with other values in the same weights.
        """
        if self.compute_dtype == torch.float32:
            return nullcontext()
        cache = None if keeps_casts and self.autocast_cache else False
        return torch.autocast(self.device.type, dtype=self.compute_dtype, cache_enabled=cache)

    def prepare(self, part: nn.Module) -> None:
        """Compute the norms of a part in float32 if a CPU would raise an error for them, in place.

        That is the case if the weights have one 16-bit dtype and the precision is the other. On a GPU autocast computes
        every norm in float32; on a CPU it does not, and the kernels raise an error for activations in one 16-bit dtype
        with weights in the other ("mixed dtype").
        """
        if self.device.type != "cpu" or self.compute_dtype == torch.float32:
            return
        for layer in part.modules():
            if isinstance(layer, nn.LayerNorm | nn.GroupNorm) and _is_other_16_bit(layer, self.compute_dtype):
                layer.forward = partial(_norm_in_float32, layer, layer.forward)  # type: ignore[method-assign]

    def make_scaler(self) -> torch.amp.GradScaler:
        """Return the gradient scaler: enabled for float16, whose gradients would underflow, otherwise disabled."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "float16")


def _is_other_16_bit(layer: nn.LayerNorm | nn.GroupNorm, compute_dtype: torch.dtype) -> bool:
    weight: torch.Tensor | None = layer.weight  # None without elementwise affine
    return weight is not None and weight.dtype.itemsize == 2 and weight.dtype != compute_dtype


def _norm_in_float32(
    layer: nn.LayerNorm | nn.GroupNorm, plain: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """Return the norm of x in float32; the weights are read at each call, because they may be moved or trained.

    Outside autocast x has the dtype of the weights, and `plain` is the layer's forward pass.
    """
    if not torch.is_autocast_enabled(x.device.type):
        return plain(x)
    weight, bias = layer.weight.float(), None if layer.bias is None else layer.bias.float()
    if isinstance(layer, nn.LayerNorm):
        return layer_norm(x.float(), layer.normalized_shape, weight, bias, layer.eps)
    return group_norm(x.float(), layer.num_groups, weight, bias, layer.eps)


@contextlib.contextmanager
def process_settings(*, num_threads: int, precision: str, deterministic: bool) -> Iterator[None]:
    """Set torch's process-wide settings for the duration of a run; they are restored afterwards.

    With the precision "float32" nothing is computed in TF32, which torch otherwise uses for convolutions on a GPU; with
    "tfloat32" matrix products use it, too. In a deterministic run an operation without a deterministic implementation
    raises RuntimeError. With `warn_only` attention's backward pass would stay nondeterministic: torch chooses the
    deterministic implementation only if it must.

    Torch does not choose cuDNN's attention by itself, as it would on an H100 or H200: its backward pass returns NaN
    where attention's logits are far below zero (pytorch/pytorch issue 196678).
    """
    threads = torch.get_num_threads()
    chooses_cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(num_threads)
    torch.set_float32_matmul_precision("high" if precision == "tfloat32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with _deterministic(deterministic):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.backends.cuda.enable_cudnn_sdp(chooses_cudnn)


@contextlib.contextmanager
def timed_kernels(device: Device, *, num_sizes: int, deterministic: bool) -> Iterator[None]:
    """Let cuDNN time its kernels for each shape of a convolution in this context, and use the fastest from then on.

    That pays where shapes return: it takes seconds for each of the `num_sizes` sizes of images. The choice may be
    another one in the next run, with other last bits, so it is off in deterministic runs, and while caches are filled.
    ROCm's library takes minutes for it.
    """
    was_on = torch.backends.cudnn.benchmark
    is_on = device.type == "cuda" and torch.version.hip is None and not deterministic and num_sizes <= _FEW_SIZES
    torch.backends.cudnn.benchmark = is_on or was_on
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = was_on


@contextlib.contextmanager
def _deterministic(is_on: bool) -> Iterator[None]:
    """Switch torch's deterministic algorithms on or off in this context, with the environment variable they need."""
    was_on = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(CUBLAS_WORKSPACE)
    if is_on and workspace not in REPEATABLE_WORKSPACES:
        os.environ[CUBLAS_WORKSPACE] = REPEATABLE_WORKSPACES[0]
    torch.use_deterministic_algorithms(is_on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_on, warn_only=only_warned)
        if workspace is None:
            os.environ.pop(CUBLAS_WORKSPACE, None)
        else:
            os.environ[CUBLAS_WORKSPACE] = workspace
