"""Filling an empty module with the tensors of a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from modules.families.registry import FAMILIES
from modules.formats.lazy_tensors import LazyTensor
from modules.quantization.linear import read_later
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory


def fill_part(
    module: Any,
    state: Mapping[str, LazyTensor],
    dtype: torch.dtype,
    *,
    where: str,
    left_out: Collection[str] = (),
    is_read_later: Callable[[str], bool],
) -> Any:
    """Fill an empty module, in place, from a state's tensors, each read and cast to `dtype` on its own.

    The weights of the linear layers that `is_read_later` takes are read when they are quantized. The tensors in
    `left_out` stay on the meta device. Raises DarkroomError if the tensors do not fit the module.
    """
    state = _with_tied_weights(module, state)
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    wrong = sorted(n for n in expected.keys() | state.keys() if n not in state or expected.get(n) != state[n].shape)
    if wrong:
        there = state[wrong[0]].shape if wrong[0] in state else "missing"
        raise DarkroomError(
            f"{len(wrong)} weights of {where} do not fit its config; the first is {wrong[0]}: {there} where "
            f"{expected.get(wrong[0], 'none')} is expected.",
            advice="The model has a different size than the detected one. Choose another model.",
        )
    linear = [name for name, layer in module.named_modules() if type(layer) is torch.nn.Linear]
    linear = [name for name in linear if f"{name}.weight" not in left_out and is_read_later(name)]
    later = {n: state[f"{n}.weight"] for n in linear if _dtype_of(module, f"{n}.weight", dtype) == dtype}
    unread = {*left_out, *(f"{n}.weight" for n in later)}
    weights = {
        name: torch.empty(tensor.shape, dtype=dtype, device="meta")
        if name in unread
        else _cast(tensor.make(), _dtype_of(module, name, dtype))
        for name, tensor in state.items()
    }
    module.load_state_dict(weights, strict=True, assign=True)
    if _tied_names(module):
        module.tie_weights()
    _fill_buffers(module)
    read_later(module, later, dtype)
    return module.eval().requires_grad_(False)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy in a dtype; of whole numbers, such as a batch norm's count, in their own."""
    return tensor.to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)


def _dtype_of(module: Any, name: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a tensor of a module in `dtype`: float32 where diffusers' class keeps it for its accuracy."""
    kept = getattr(module, "_keep_in_fp32_modules", None) if hasattr(module, "from_config") else None
    return torch.float32 if kept and not set(name.split(".")).isdisjoint(kept) else dtype


def _with_tied_weights(module: Any, state: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return a state with the second names of weights that modules share: files have them once (T5's vocabulary)."""
    tied = {name: state[first] for name, first in _tied_names(module).items() if first in state}
    return {**tied, **state}


def _tied_names(module: Any) -> Mapping[str, str]:
    """Return the names of a transformers model's shared weights, each with the name that files have."""
    names = getattr(module, "_tied_weights_keys", None)
    return names if isinstance(names, Mapping) else {}


def _fill_buffers(module: torch.nn.Module) -> None:
    """Fill the buffers that are not in files: CLIP's position ids count from zero, rotary embeddings come from the
    config, and others from the function of the part's class (`ModelClass.fill_buffers`).
    """
    parts = (part for spec in FAMILIES.values() for part in spec.parts)
    for function in {p.model.fill_buffers for p in parts if p.class_name == type(module).__name__} - {""}:
        load_factory(function)(module)
    for owner in module.modules():
        names = [name for name, buffer in owner._buffers.items() if buffer is not None and buffer.is_meta]
        if names == ["position_ids"]:
            shape = owner._buffers["position_ids"].shape  # type: ignore[union-attr]
            owner._buffers["position_ids"] = torch.arange(shape[-1]).expand(shape).clone()
        elif names:
            rotary: Any = type(owner)
            fresh = rotary(owner.config)
            for name in names:
                owner._buffers[name] = fresh._buffers[name]
