"""Layers of an adapter file that a run does not train: frozen, with the same effect as in every program that loads the
file.

Each is added to the output of its layer by a forward hook, in float32 from the file's factors: the model's weights,
which may be in 16 bits, are never changed. The factors are buffers, so they move with their part and are neither
trained, nor offloaded, nor counted by the watchdog. They are part of the run's starting point: `Adapter.disabled()`,
which gives the reference prediction, leaves them on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.nn import functional

from modules.adapters.changes import Shape, bias_change, does_not_fit, plain_lora, weight_change
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.adapter_types import DORA_SCALE, can_act
from modules.system.errors import DarkroomError

_NAME = "kept_layer"
_WithWeight = nn.Linear | nn.Conv2d | nn.LayerNorm | nn.GroupNorm


class KeptLayer(nn.Module):
    """The frozen change of one layer by a file."""

    def __init__(self, layer: AdapterLayer, weight: Shape, *, where: str) -> None:
        """`weight` is the shape of the weight it belongs to. Raises DarkroomError if the factors do not fit it."""
        super().__init__()
        factors = {name: factor.to(torch.float32) for name, factor in layer.factors.items()}
        self.alpha = layer.alpha
        self.is_low_rank = DOWN in factors and DORA_SCALE not in factors
        if self.is_low_rank:
            self._scale = layer.scale
            factors |= dict(zip((DOWN, UP), plain_lora(layer, weight, where=where), strict=True))
        self._names = {name: name.replace(".", "_") for name in factors}
        for name, attribute in self._names.items():
            self.register_buffer(attribute, factors[name], persistent=False)  # not weights of the model

    @property
    def factors(self) -> dict[str, torch.Tensor]:
        """The factors in float32 by kohya's names, on the part's device; a Tucker core is multiplied into down."""
        return {name: getattr(self, attribute) for name, attribute in self._names.items()}

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return a layer's output with the change added: its forward hook."""
        assert isinstance(layer, _WithWeight)
        change: torch.Tensor = self(layer, inputs[0].to(torch.float32))
        return output + change.to(output.dtype)

    def forward(self, layer: _WithWeight, x: torch.Tensor) -> torch.Tensor:
        """Return the change of a layer's output for its input x, in float32."""
        factors = self.factors
        bias = bias_change(factors)
        if self.is_low_rank:
            low = apply_weight(layer, x, factors[DOWN])
            up = factors[UP]  # a linear layer's input may have four axes, too
            high = functional.linear(low, up) if up.ndim == 2 else functional.conv2d(low, up)
            return self._scale * high if bias is None else self._scale * high + _along(layer, bias, x)
        with torch.autocast(x.device.type, enabled=False):  # in 16 bits, the product of the factors would differ
            weight = weight_change(factors, self.alpha, layer.weight)
        if weight is None:
            assert bias is not None
            return _along(layer, bias, x)
        return apply_weight(layer, x, weight, bias)


def attach_kept(modules: Mapping[str, nn.Module], layers: Iterable[AdapterLayer], *, where: str) -> None:
    """Put frozen layers of the file named `where` on the parts of a model, by name, before any new adapter.

    A layer whose change is not known here (`can_act`) is left out. Raises DarkroomError if one does not fit the model.
    """
    for layer in layers:
        if not can_act(layer.shapes):
            continue
        target = modules[layer.part].get_submodule(layer.path)
        kept = kept_layer(layer, target, where=where)
        target.add_module(_NAME, kept)
        target.register_forward_hook(kept.add_to)


def kept_layer(layer: AdapterLayer, target: nn.Module, *, where: str) -> KeptLayer:
    """Return the frozen change by a layer of the file named `where`, for the layer `target` of a model, on its device.

    Raises DarkroomError if it does not fit.
    """
    if not isinstance(target, _WithWeight) or getattr(target, "groups", 1) != 1 or target.weight is None:
        raise DarkroomError(
            f"{where} changes {layer.part}.{layer.path}, a layer of a kind for which that is not supported.",
            advice="Choose to leave out the other layers, on the Training page.",
        )
    kept = KeptLayer(layer, tuple(target.weight.shape), where=where).to(target.weight.device)
    _try_out(kept, target, layer, where)
    return kept


def kept_bias(layer: nn.Module) -> torch.Tensor | None:
    """Return the change of a layer's bias by a frozen layer of a file, of shape (out,); None if it has none."""
    kept = getattr(layer, _NAME, None)
    return bias_change(kept.factors) if isinstance(kept, KeptLayer) else None


def kept_fingerprint(layers: Iterable[AdapterLayer]) -> str:
    """Return a hash of frozen layers, their names and alphas, for the identity of the part they are on."""
    digest = hashlib.blake2b(digest_size=16)
    for layer in sorted(layers, key=lambda layer: (layer.part, layer.path)):
        for name, factor in sorted(layer.factors.items()):
            facts = (layer.part, layer.path, layer.alpha, name, factor.dtype, tuple(factor.shape))
            digest.update(str(facts).encode())
            digest.update(factor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def apply_weight(
    layer: _WithWeight, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Apply a layer with another weight and bias to x; all these layers are linear in both."""
    match layer:
        case nn.Linear():
            return functional.linear(x, weight, bias)
        case nn.Conv2d():
            return functional.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation)
        case nn.LayerNorm():
            return functional.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)
        case _:
            return functional.group_norm(x, layer.num_groups, weight, bias, layer.eps)


def _along(layer: _WithWeight, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a bias in the shape that adds it to the channels of a layer's output; x is its input."""
    has_channels_second = isinstance(layer, nn.Conv2d | nn.GroupNorm)
    return bias.reshape(-1, *(1 for _ in x.shape[2:])) if has_channels_second else bias


def _try_out(kept: KeptLayer, target: _WithWeight, layer: AdapterLayer, where: str) -> None:
    """Raise DarkroomError if the factors do not fit each other or the layer."""
    factors = kept.factors
    bias = bias_change(factors)
    try:
        with torch.no_grad():
            change = None if kept.is_low_rank else weight_change(factors, kept.alpha, target.weight)
        fits = (change is None or change.shape == target.weight.shape) and (
            bias is None or len(bias) == len(target.weight)
        )
    except (RuntimeError, IndexError):  # which is what factors that do not fit raise
        fits = False
    if not fits:
        raise does_not_fit(layer, tuple(target.weight.shape), where)
