"""The forward pass of peft's layers with a plain LoRA, in few operations (`lora_fused`), in the dtype of their input.

Layers that read one input, such as q, k and v of an attention, are computed together when it is read first: their
products with A are one, and the gradient of the input is summed inside of the products. The model calls each layer by
itself; the first call computes all of them, and the others find their outputs. An output belongs to the very tensor
that was read, and to the copies of the factors in this pass (`modules/memory/pass_copies.py`); a layer that is called
otherwise computes alone. So does each one in compiled blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MethodType
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.nn import functional

from modules.adapters.lora_fused import AdaptedLinear, AdaptedSiblings, AddLowRank, RoundFactor
from modules.families.parts.circular_padding import pad_input
from modules.memory.pass_copies import Copies, copies_of

ADAPTER = "default"
"""The name of the run's LoRA in peft's layers."""

_Factors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # A and B, and both as they multiply
# Of an attention in diffusers and in transformers. With the states of a text, "to_q" reads another input.
_TOGETHER = (("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj"), ("q_proj", "k_proj", "v_proj"))
_OF_TEXT = (("to_k", "to_v"),)
_SIBLINGS = "siblings"


def fuse_forwards(part: nn.Module, layers: Mapping[str, LoraLayer]) -> None:
    """Replace the forward passes of peft's layers with a plain LoRA on linear layers and convolutions of a part.

    `layers` has them by their names in the part.
    """
    for layer in layers.values():
        # A method: torch.compile shares the code of layers whose methods are one function, but not of other callables.
        layer.forward = MethodType(_forward, layer)
    for together in _with_one_input(part, layers):
        siblings = Siblings(together)
        for layer in together:
            layer.__dict__[_SIBLINGS] = siblings


def _forward(layer: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return the output of a layer with its LoRA, in the dtype of the layer's own output."""
    base = layer.get_base_layer()
    if layer.disable_adapters:
        plain: torch.Tensor = base(x, *args, **kwargs)
        return plain
    scale, dropout = layer.scaling[ADAPTER], layer.lora_dropout[ADAPTER]
    if isinstance(base, nn.Conv2d):
        return _convolve(base, base(x), dropout(x), _factors(layer, x.dtype), scale)
    if is_plain(base) and isinstance(dropout, nn.Identity):
        if not torch.compiler.is_compiling() and (shared := _output_with_siblings(layer, x)) is not None:
            return shared
        factors = _factors(layer, x.dtype)
        fused: torch.Tensor = AdaptedLinear.apply(x, base.weight, base.bias, *factors, scale)  # type: ignore[no-untyped-call]
        return fused
    out = base(x)
    added: torch.Tensor = AddLowRank.apply(out, dropout(x), *_factors(layer, out.dtype), scale)  # type: ignore[no-untyped-call]
    return added


def _factors(layer: Any, dtype: torch.dtype) -> _Factors:
    down, up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    copies = copies_of(layer)
    if copies is not None and copies[0].dtype == dtype:
        return down, up, *copies
    return down, up, down.detach().to(dtype), up.detach().to(dtype)


def _output_with_siblings(layer: Any, x: torch.Tensor) -> torch.Tensor | None:
    siblings = siblings_of(layer)
    if siblings is None:
        return None
    if (output := siblings.take(layer, x)) is not None:
        return output
    if not siblings.layers:
        return None
    return siblings.compute(layer, x) if all(_is_fused(sibling, x.dtype) for sibling in siblings.layers) else None


def _is_fused(layer: Any, dtype: torch.dtype) -> bool:
    """Return whether a layer computes with copies in a dtype, and its weight as it is."""
    copies = copies_of(layer)
    has_dropout = not isinstance(layer.lora_dropout[ADAPTER], nn.Identity)
    return copies is not None and copies[0].dtype == dtype and is_plain(layer.get_base_layer()) and not has_dropout


def siblings_of(layer: nn.Module) -> Siblings | None:
    """Return the layers that are computed together with a layer, if there are any."""
    siblings: Siblings | None = layer.__dict__.get(_SIBLINGS)
    return siblings


def is_plain(layer: nn.Module) -> bool:
    """Return whether a layer is a frozen linear layer whose forward pass nothing has changed."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or "forward" in layer.__dict__
    return type(layer) is nn.Linear and not hooks and not layer.weight.requires_grad


def _convolve(base: nn.Conv2d, out: torch.Tensor, x: torch.Tensor, factors: _Factors, scale: float) -> torch.Tensor:
    down, up = (RoundFactor.apply(*pair) for pair in zip(factors[:2], factors[2:], strict=True))  # type: ignore[no-untyped-call]
    low = functional.conv2d(pad_input(base, x), down, None, base.stride, base.padding, base.dilation)
    return torch.add(out, functional.conv2d(low, up), alpha=scale)


@dataclass(frozen=True, slots=True)
class _Ready:
    """Outputs that were computed with the first one, for an input and the copies of a pass."""

    x: torch.Tensor
    version: int
    copies: Copies | None
    records: bool
    outputs: dict[nn.Module, torch.Tensor]


class Siblings:
    """Layers that read one input. Should one of them read another one, each computes alone from then on."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers: tuple[Any, ...] = tuple(layers)
        self._ready: _Ready | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether an output was computed that no layer has taken yet."""
        return self._ready is not None

    def take(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor | None:
        """Return the output of a layer that was computed for this very input in this pass; None if there is none."""
        ready = self._ready
        if ready is None or layer not in ready.outputs:
            return None
        matches = (ready.x is x, ready.version == x._version, ready.copies is copies_of(self.layers[0]))
        if not all(matches) or ready.records != torch.is_grad_enabled():
            self.layers, self._ready = (), None
            return None
        output = ready.outputs.pop(layer)
        if not ready.outputs:
            self._ready = None
        return output

    def compute(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        """Compute all outputs, return the output of a layer, and keep the others. All must have copies."""
        down = _join_downs([_factors(sibling, x.dtype)[2] for sibling in self.layers])
        scales = tuple(sibling.scaling[ADAPTER] for sibling in self.layers)
        tensors = []
        for sibling in self.layers:
            base, factors = sibling.get_base_layer(), _factors(sibling, x.dtype)
            tensors += [base.weight, base.bias, factors[0], factors[1], factors[3]]
        sums = AdaptedSiblings.apply(x, down, scales, *tensors)  # type: ignore[no-untyped-call]
        outputs = dict(zip(self.layers, sums, strict=True))
        output: torch.Tensor = outputs.pop(layer)
        self._ready = _Ready(x, x._version, copies_of(self.layers[0]), torch.is_grad_enabled(), outputs)
        return output


def _with_one_input(part: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[list[nn.Module]]:
    """Yield the layers of a part that read one input together, of those in `layers`, which are named as in the part."""
    for parent in dict.fromkeys(path.rpartition(".")[0] for path in layers):
        is_cross = getattr(part.get_submodule(parent), "is_cross_attention", False)
        for names in _OF_TEXT if is_cross else _TOGETHER:
            siblings = [layer for name in names if (layer := layers.get(f"{parent}.{name}")) is not None]
            if len(siblings) > 1:
                yield siblings


def _join_downs(downs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return matrices (rank, in) as one: where they lie one after the other in memory, without a copy."""
    first, ranks = downs[0], [len(down) for down in downs]
    places = accumulate((down.numel() for down in downs), initial=first.storage_offset())
    storage = first.untyped_storage()._cdata
    follow = all(
        down.is_contiguous() and down.storage_offset() == place and down.untyped_storage()._cdata == storage
        for down, place in zip(downs, places, strict=False)
    )
    if not follow:
        return torch.cat(list(downs))
    return first.as_strided((sum(ranks), first.shape[1]), (first.shape[1], 1))
