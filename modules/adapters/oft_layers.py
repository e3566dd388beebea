"""OFT's layers, added by a hook: `h = R W x + b` for rotated outputs, `h = W R x + b` for rotated inputs.

The rotation of the outputs is applied to what the layer returns, whatever the layer is, and needs no weight. peft has
the rotation of inputs, too, but is not the identity at first on convolutions larger than 1x1: here those are rotated in
their weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from modules.adapters.delta_adapter import (
    AdaptedLayer,
    DeltaKind,
    applied,
    attribute_of,
)
from modules.adapters.kept_layers import kept_bias
from modules.adapters.layer_dropout import ModuleDropout, attach_module_dropout
from modules.adapters.layer_input import layer_input
from modules.adapters.oft import OFT, Oft, factor_shapes
from modules.adapters.rotations import cayley, cayley_series, generators, oft_change, rotated, spread, within
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import OFT_BLOCKS, OFT_VECTORS, RESCALE
from modules.system.devices import dtype_of

# Programs differ in how they read alpha as a limit of the norm; this one is never reached (see `RotationDelta.stored`).
_NO_LIMIT = 1024.0


class RotationDelta(nn.Module):
    """What OFT adds to one linear or convolution layer: blocks for its outputs, or vectors for its inputs."""

    def __init__(
        self,
        shape: Sequence[int],
        factors: Mapping[str, torch.Tensor],
        *,
        constraint: float = 0.0,
        is_scaled: bool = False,
        dropout: float = 0.0,
        module_dropout: ModuleDropout | None = None,
    ) -> None:
        """`shape` is that of the layer's weight. The dropouts are of blocks and of the whole."""
        super().__init__()
        self._attributes = {name: attribute_of(name) for name in factors}
        for name, factor in factors.items():
            self.register_parameter(self._attributes[name], nn.Parameter(factor))
        self.is_enabled = True
        self._rotates_outputs = OFT_BLOCKS in factors
        self._size = shape[0] if self._rotates_outputs else math.prod(shape[1:])
        self._limit = constraint * self._size
        self._scale = 1.0
        if is_scaled:
            blocks, vectors = factors.get(OFT_BLOCKS), factors.get(OFT_VECTORS)
            num_values = vectors.shape[1] if vectors is not None else math.comb(blocks.shape[-1], 2)  # type: ignore[union-attr]
            self._scale = max(num_values, 1) ** -0.5
        self._dropout = dropout
        self._module_dropout = (module_dropout,)  # in a tuple: it is the layer's module, not this one's

    @property
    def module_dropout(self) -> ModuleDropout | None:
        """The module dropout of the layer, if it has one."""
        return self._module_dropout[0]

    def factors(self) -> dict[str, nn.Parameter]:
        """Return the trained factors by their names in files."""
        own = dict(self.named_parameters())
        return {name: own[attribute] for name, attribute in self._attributes.items()}

    def stored(self, values: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the factors and alpha as files hold them, so that every program computes the same rotation.

        The scale and the constraint are multiplied into them, and a shared block is there for all channels. For
        outputs alpha is a limit of their norm, which LyCORIS multiplies by the number of outputs and others do not: it
        is one that is never reached.
        """
        found = dict(values)
        name = OFT_BLOCKS if self._rotates_outputs else OFT_VECTORS
        if self._scale != 1.0 or self._limit:
            found[name] = values[name].float() * self._scale
            norm = torch.linalg.vector_norm(self._spread(generators(found)))
            if self._limit:
                found[name] = found[name] * (self._limit / norm.clamp_min(self._limit))
        if not self._rotates_outputs:
            return found, None
        found[name] = spread(found[name], self._size).contiguous()
        norm = torch.linalg.vector_norm(generators(found))
        return found, max(_NO_LIMIT, 2.0 ** math.ceil(math.log2(max(float(norm), 1.0))))

    def load(self, layer: AdapterLayer) -> None:
        """Take the factors of a layer in a file, in place, with the file's constraint multiplied into them."""
        name = OFT_BLOCKS if self._rotates_outputs else OFT_VECTORS
        limit = (layer.alpha or 0.0) * self._size if self._rotates_outputs else 0.0
        with torch.no_grad():
            for factor_name, factor in self.factors().items():
                value = layer.factors[factor_name].float()
                if factor_name == name:
                    norm = torch.linalg.vector_norm(generators(layer.factors))
                    value = value * (limit / norm if 0 < limit < norm else 1.0) / self._scale
                factor.copy_(value.reshape(factor.shape))

    def weight_change(self, layer: AdaptedLayer) -> torch.Tensor:
        """Return what it adds to the weight of its layer, in float32."""
        factors, alpha = self.stored({name: factor.detach() for name, factor in self.factors().items()})
        return oft_change(factors, alpha, layer.weight)

    def rotations(self) -> torch.Tensor:
        """Return R - I, of shape (blocks, size, size), in float32; some of them 0 in training with dropout."""
        factors = self.factors()
        with torch.autocast(next(self.parameters()).device.type, enabled=False):
            own = within(self._spread(generators(factors)) * self._scale, self._limit)
            turned = cayley(own) if self._rotates_outputs else cayley_series(own)
        if self.training and self._dropout:
            turned = turned * (torch.rand(len(turned), 1, 1, device=turned.device) >= self._dropout)
        return turned

    def forward(self, layer: AdaptedLayer, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return what is added to the layer's output for its input x."""
        return self._of_outputs(layer, output) if self._rotates_outputs else self._of_inputs(layer, x)

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return a layer's output with this added: its forward hook."""
        assert isinstance(layer, AdaptedLayer)
        if not self.is_enabled:
            return output
        change, dropout = self(layer, inputs[0], output), self.module_dropout
        return output + (change if dropout is None else dropout.kept(change)).to(output.dtype)

    def _spread(self, of_blocks: torch.Tensor) -> torch.Tensor:
        return spread(of_blocks, self._size)

    def _of_outputs(self, layer: AdaptedLayer, output: torch.Tensor) -> torch.Tensor:
        is_convolution = isinstance(layer, nn.Conv2d)
        plain = output
        for bias in (layer.bias, kept_bias(layer)):  # biases are not rotated
            if bias is not None:
                plain = plain - (bias[:, None, None] if is_convolution else bias).to(plain.dtype)
        change = rotated(self.rotations().to(plain.dtype), plain, 1 if is_convolution else -1)
        scales = self.factors().get(RESCALE)
        if scales is None:
            return change
        along = scales.reshape(-1, 1, 1) if is_convolution else scales.reshape(-1)
        return along * change + (along - 1) * plain

    def _of_inputs(self, layer: AdaptedLayer, x: torch.Tensor) -> torch.Tensor:
        turned, weight = self.rotations(), layer.weight
        if weight[0].numel() == weight.shape[1]:
            dtype = next(self.parameters()).dtype
            x = layer_input(x, dtype, keeps_cast=False)
            x = rotated(turned.to(dtype), x, 1 if isinstance(layer, nn.Conv2d) else -1)
            return applied(layer, layer_input(x, weight.dtype, keeps_cast=False), weight)
        with torch.autocast(x.device.type, enabled=False):
            change = rotated(turned.transpose(-1, -2), weight.float().flatten(1), -1).reshape(weight.shape)
        return applied(layer, x.to(change.dtype), change)


def _delta(layer: AdaptedLayer, part: str, path: str, settings: Oft, stored: AdapterLayer | None) -> RotationDelta:
    """Return what OFT adds to a layer, before it is on it: the identity, in a file's shapes if there is one."""
    weight, dtype = layer.weight, dtype_of(settings.dtype)
    shapes = factor_shapes(settings, tuple(weight.shape)) if stored is None else stored.shapes
    factors = {name: torch.empty(shape, dtype=dtype, device=weight.device) for name, shape in shapes.items()}
    return RotationDelta(
        weight.shape,
        {name: factor.fill_(1.0 if name == RESCALE else 0.0) for name, factor in factors.items()},
        constraint=settings.constraint,
        is_scaled=settings.scaled,
        dropout=settings.dropout,
        module_dropout=attach_module_dropout(layer, settings.module_dropout),
    )


def _stored(layer: AdaptedLayer, stored: AdapterLayer) -> RotationDelta:
    """Return what the OFT of a file adds to a layer."""
    device = layer.weight.device
    return RotationDelta(
        layer.weight.shape, {n: torch.empty(f.shape, device=device) for n, f in stored.factors.items()}
    )


OFT_KIND = DeltaKind(OFT.label, "oft", _delta, _stored)
