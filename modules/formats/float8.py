"""Files in float8 (e4m3: four bits of exponent, three of mantissa; Micikevicius et al. 2022, "FP8 Formats").

Values from 2^-6 to 448 have a relative error of at most 1/16; smaller ones lose more, and values below 2^-10 become 0.
So only matrices and kernels of the denoiser are stored in float8, everything else in float16, also the embeddings of
timesteps, the modulations and the layers at both ends, which are small and sensitive; and the factors of a LoRA, which
are mostly smaller, are scaled up by powers of two, with an alpha that reverses this.

In scaled float8 each matrix is divided by a number of its own before it is rounded, so that its largest value becomes
the largest of the format and smaller ones keep their relative error; `float8_scales` has the names. A scale is of a
whole matrix: ComfyUI reads none of rows or blocks (its issue 10491).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import torch

from modules.formats.adapter_names import layer_and_factor
from modules.formats.adapter_types import ALPHA
from modules.formats.float8_scales import scale_of
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.formats.safetensors_io import Writable

FLOAT8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FLOAT8).max
_REST = torch.float16
# Of the largest value of a factor: small enough that programs which compute with it in float16 do not overflow.
_TARGET_EXPONENT = 3


def matrices_in_float8(
    tensors: Mapping[str, LazyTensor], never: Collection[str] = frozenset()
) -> dict[str, LazyTensor]:
    """Return the tensors of a denoiser for a file: weights with two and more axes in float8, others in float16.

    Weights of layers with one of the steps in `never` in their dotted paths, or with one of the paths behind a "^", are
    in float16, too: those that are never quantized.
    """

    return {name: _cast(t, FLOAT8 if takes_float8(name, t.shape, never) else _REST) for name, t in tensors.items()}


def takes_float8(name: str, shape: Sequence[int], never: Collection[str]) -> bool:
    """Return whether a tensor of a denoiser is one that `matrices_in_float8` stores in float8."""
    layer = name.rpartition(".")[0]
    is_weight = name.endswith("weight") and len(shape) > 1
    return is_weight and set(never).isdisjoint([*layer.split("."), f"^{layer}"])


def in_scaled_float8(tensors: Mapping[str, LazyTensor], matrices: Collection[str]) -> dict[str, LazyTensor]:
    """Return the tensors of a file with the named matrices in scaled float8, and all others in float16.

    The scale of each, a number in float32, is among them; the mark of such files is not (`mark_of_scales`).
    """
    written: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        if name not in matrices:
            written[name] = _cast(tensor, _REST)
            continue
        scale = _Scale(tensor)
        written[name] = LazyTensor(tensor.shape, FLOAT8, partial(_divide, tensor, scale))
        written[scale_of(name)] = LazyTensor((), torch.float32, scale)
    return written


class _Scale:
    """The scale of a matrix: its largest value in units of the largest of float8. Made once, from the whole matrix."""

    def __init__(self, matrix: LazyTensor) -> None:
        self._matrix = matrix
        self._value: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        if self._value is None:
            self._value = self.of(self._matrix.make())
        return self._value

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """Return the scale, from the values of the matrix."""
        if self._value is None:
            largest = values.float().abs().amax()
            self._value = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
        return self._value


def _divide(matrix: LazyTensor, scale: _Scale) -> torch.Tensor:
    values = matrix.make().float()
    return _convert(values / scale.of(values), FLOAT8)


def rest_in_float16(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return the tensors of another part of a model for such a file: in float16."""
    return {name: _cast(t, _REST) for name, t in tensors.items()}


def adapter_in_float8(tensors: Mapping[str, Writable], scaled: Collection[str]) -> dict[str, Writable]:
    """Return the tensors of a LoRA file in kohya's form, by their names in the file.

    The factors named in `scaled` ("lora_down.weight") are multiplied by powers of two, and the layers' alphas are
    divided by the products, so that their changes are the same. All layers have the same product: diffusers ignores
    alphas of attention layers that differ from most others. Everything else is in float16, each alpha in float32.
    A layer without an alpha tensor is not scaled and stays in float16.
    """
    placed = {name: layer_and_factor(name) for name in tensors}
    with_alpha = {layer for layer, factor in placed.values() if factor == ALPHA}
    names: dict[str, list[str]] = {}
    for name, (layer, factor) in placed.items():
        if factor in scaled and layer in with_alpha:
            names.setdefault(layer, []).append(name)
    by_layer = {layer: [_exponent_up(_make(tensors[n])) for n in of_layer] for layer, of_layer in names.items()}
    product = min((sum(exponents) for exponents in by_layer.values()), default=0)
    written: dict[str, Writable] = {n: _cast(_as_lazy(t), _REST) for n, t in tensors.items() if placed[n][1] != ALPHA}
    for layer, of_layer in names.items():
        *first, _ = by_layer[layer]
        for name, exponent in zip(of_layer, [*first, product - sum(first)], strict=True):
            written[name] = _convert(_make(tensors[name]).float() * 2.0**exponent, FLOAT8)
    for name, (layer, factor) in placed.items():
        if factor == ALPHA:
            written[name] = _make(tensors[name]).float() * 2.0 ** (-product if layer in names else 0)
    return written


def _exponent_up(values: torch.Tensor) -> int:
    """Return the exponent of the power of two that scales the largest value to between half of the target and all."""
    largest = values.float().abs().max().item() if values.numel() else 0.0
    return _TARGET_EXPONENT - math.frexp(largest)[1] if largest > 0 and math.isfinite(largest) else 0


def _cast(tensor: LazyTensor, dtype: torch.dtype) -> LazyTensor:
    if not tensor.dtype.is_floating_point or tensor.dtype == dtype:
        return tensor
    return LazyTensor(tensor.shape, dtype, lambda: _convert(tensor.make(), dtype))


def _convert(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values in a dtype. What float8 cannot hold becomes its largest value; infinite ones become NaN."""
    if dtype == FLOAT8:
        finite = torch.isfinite(values)
        values = torch.where(finite, values.clamp(-_LARGEST, _LARGEST), torch.full_like(values, math.nan))
    return values.to(dtype)


def _as_lazy(tensor: Writable) -> LazyTensor:
    return tensor if isinstance(tensor, LazyTensor) else lazy(tensor)


def _make(tensor: Writable) -> torch.Tensor:
    return tensor.make() if isinstance(tensor, LazyTensor) else tensor.detach()
