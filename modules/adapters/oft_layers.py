"""OFT's layers, added by a hook: `h = R W x + b` for rotated outputs, `h = W R x + b` for rotated inputs.

The rotation of the outputs is applied to the result of the layer, whatever the layer is, and needs no weight. peft also
has the rotation of inputs, which on convolutions larger than 1x1 does not begin as the identity: here their weights are
rotated.

A skew-symmetric Q generates a rotation R by the Cayley transform `R = (I + Q) (I - Q)^-1` (Qiu et al. 2023, section
3.1), or by the first five terms of its series, `I + 2 Q + 2 Q^2 + 2 Q^3 + Q^4` (Qiu et al. 2025, section 4), which is
what the programs that read those files compute. This module always computes `R - I`, in float32: rounding would leave
little of small rotations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from modules.adapters import oft
from modules.adapters.delta_adapter import AdaptedLayer, DeltaKind, attribute_of, layer_input
from modules.adapters.kept_layers import apply_weight, kept_bias
from modules.adapters.layer_dropout import ModuleDropout, attach_module_dropout
from modules.formats.adapter_layers import AdapterLayer
from modules.system.devices import dtype_of


def as_in_lycoris(
    factors: Mapping[str, torch.Tensor], alpha: float | None, rank: float | None
) -> dict[str, torch.Tensor]:
    """Return factors as the rotation needs them. Scaled OFT, which OneTrainer marks by a tensor, has vectors that must
    be divided by 2 sqrt(n - 1) for blocks of n channels.
    """
    plain = {name: factor for name, factor in factors.items() if name != oft.OFT_SCALED}
    if oft.OFT_SCALED in factors and oft.OFT_VECTORS in factors and factors[oft.OFT_VECTORS].ndim == 2:
        side = oft.side_of_vectors(factors[oft.OFT_VECTORS].shape[1])
        plain[oft.OFT_VECTORS] = factors[oft.OFT_VECTORS].float() / (2 * math.sqrt(max(side - 1, 1)))
    return plain


def generators(factors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the skew-symmetric generators of a layer's rotations, (blocks, size, size), in float32.

    Raises RuntimeError or IndexError if the factors are not valid.
    """
    if oft.OFT_BLOCKS in factors:
        blocks = factors[oft.OFT_BLOCKS].float()
        return blocks - blocks.transpose(-1, -2)
    values = factors[oft.OFT_VECTORS].float()
    side = oft.side_of_vectors(values.shape[1])
    rows, columns = torch.triu_indices(side, side, 1, device=values.device)
    upper = values.new_zeros(values.shape[0], side, side).index_put((_block_numbers(values), rows, columns), values)
    return upper - upper.transpose(-1, -2)


def _block_numbers(values: torch.Tensor) -> torch.Tensor:
    """Return the numbers of the blocks, as the first index of the values above their diagonals."""
    return torch.arange(values.shape[0], device=values.device)[:, None]


def limit_norm(generators_KNN: torch.Tensor, limit: float) -> torch.Tensor:
    """Return generators whose norm, over all blocks of a layer, is at most `limit`; 0 means no limit (COFT)."""
    if not limit:
        return generators_KNN
    norm: torch.Tensor = torch.linalg.vector_norm(generators_KNN)
    return generators_KNN * (limit / norm.clamp_min(limit))


class CayleyTransform(torch.autograd.Function):
    """`R - I` from Q. Only the result is kept for backward: dR is `S dQ S / 2` with `S = R + I = 2 (I - Q)^-1`."""

    @staticmethod
    def forward(ctx: Any, generators_KNN: torch.Tensor) -> torch.Tensor:
        """Return `2 Q (I - Q)^-1`."""
        eye = torch.eye(generators_KNN.shape[-1], device=generators_KNN.device, dtype=generators_KNN.dtype)
        turned: torch.Tensor = torch.linalg.solve(eye - generators_KNN, 2 * generators_KNN, left=False)
        ctx.save_for_backward(turned)
        return turned

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of Q."""
        (turned,) = ctx.saved_tensors
        eye = torch.eye(turned.shape[-1], device=turned.device, dtype=turned.dtype)
        both = (turned + 2 * eye).transpose(-1, -2)
        product: torch.Tensor = both @ grad @ both / 2
        return product


def cayley(generators_KNN: torch.Tensor) -> torch.Tensor:
    """Return R - I of the Cayley transform."""
    turned: torch.Tensor = CayleyTransform.apply(generators_KNN)  # type: ignore[no-untyped-call]
    return turned


def cayley_series(generators_KNN: torch.Tensor) -> torch.Tensor:
    """Return R - I of the first five terms of the Cayley transform's series: `2 Q + 2 Q^2 + 2 Q^3 + Q^4`."""
    square = generators_KNN @ generators_KNN
    cube = square @ generators_KNN
    return 2 * (generators_KNN + square + cube) + cube @ generators_KNN


def rotate(rotations_KNN: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the vectors along an axis of x, each block times its rotation (or R - I): `y_m = sum_n x_n R_nm`."""
    num_blocks, side = rotations_KNN.shape[:2]
    if axis in (-1, x.ndim - 1):
        return torch.einsum("...kn,knm->...km", x.unflatten(-1, (num_blocks, side)), rotations_KNN).flatten(-2)
    blocks = x.unflatten(axis, (num_blocks, side)).flatten(axis + 2)
    turned = torch.matmul(rotations_KNN.transpose(-1, -2), blocks)
    return turned.reshape(x.shape)


def spread(rotations_KNN: torch.Tensor, size: int) -> torch.Tensor:
    """Return rotations with blocks for all `size` channels: a single block is repeated.

    Raises RuntimeError if the rotations are for another number of channels.
    """
    num_blocks, side, _ = rotations_KNN.shape
    if num_blocks == 1 and size % side == 0:
        return rotations_KNN.expand(size // side, side, side)
    if num_blocks * side != size:
        raise RuntimeError(f"{num_blocks} blocks of {side} for {size} channels")
    return rotations_KNN


def oft_change(factors: Mapping[str, torch.Tensor], alpha: float | None, weight: torch.Tensor) -> torch.Tensor:
    """Return the change of a weight (out, in, kernel) by an OFT, from the factors of a file, in float32.

    With blocks for the outputs alpha is LyCORIS' constraint: the norm of the generators is at most alpha times the
    number of outputs. Raises RuntimeError if the factors do not fit the weight.
    """
    matrix = weight.float().flatten(1)
    if oft.OFT_BLOCKS not in factors:
        turned = spread(cayley_series(generators(factors)), matrix.shape[1])
        return rotate(turned.transpose(-1, -2), matrix, -1).reshape(weight.shape)
    turned = spread(cayley(limit_norm(generators(factors), (alpha or 0.0) * matrix.shape[0])), matrix.shape[0])
    change = rotate(turned, matrix, 0)
    if oft.RESCALE in factors:
        scales = factors[oft.RESCALE].float().reshape(-1, 1)
        change = scales * change + (scales - 1) * matrix
    return change.reshape(weight.shape)


class RotationDelta(nn.Module):
    """OFT's change of one linear or convolution layer: blocks for its outputs, or vectors for its inputs."""

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
        """`shape` is the shape of the layer's weight. The dropouts leave out blocks and the whole change."""
        super().__init__()
        self._attributes = {name: attribute_of(name) for name in factors}
        for name, factor in factors.items():
            self.register_parameter(self._attributes[name], nn.Parameter(factor))
        self.is_enabled = True
        self._rotates_outputs = oft.OFT_BLOCKS in factors
        self._size = shape[0] if self._rotates_outputs else math.prod(shape[1:])
        self._limit = constraint * self._size
        self._scale = 1.0
        if is_scaled:
            blocks, vectors = factors.get(oft.OFT_BLOCKS), factors.get(oft.OFT_VECTORS)
            num_values = vectors.shape[1] if vectors is not None else math.comb(blocks.shape[-1], 2)  # type: ignore[union-attr]
            self._scale = max(num_values, 1) ** -0.5
        self._dropout = dropout
        self._module_dropout = (module_dropout,)  # in a tuple: it is a submodule of the layer, not of this module

    @property
    def module_dropout(self) -> ModuleDropout | None:
        """The module dropout of the layer, if it has one."""
        return self._module_dropout[0]

    def factors(self) -> dict[str, nn.Parameter]:
        """Return the trained factors by their names in files."""
        parameters = dict(self.named_parameters())
        return {name: parameters[attribute] for name, attribute in self._attributes.items()}

    def in_file_form(self, values: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the factors and alpha as files hold them, so that every program computes the same rotation.

        The scale and the constraint are multiplied into them, and a shared block is repeated for all channels. For
        outputs, alpha limits the norm; LyCORIS multiplies it by the number of outputs and others do not, so it is set
        to a value that is never reached.
        """
        in_file = dict(values)
        name = oft.OFT_BLOCKS if self._rotates_outputs else oft.OFT_VECTORS
        if self._scale != 1.0 or self._limit:
            in_file[name] = values[name].float() * self._scale
            norm = torch.linalg.vector_norm(self._spread(generators(in_file)))
            if self._limit:
                in_file[name] = in_file[name] * (self._limit / norm.clamp_min(self._limit))
        if not self._rotates_outputs:
            return in_file, None
        in_file[name] = spread(in_file[name], self._size).contiguous()
        norm = torch.linalg.vector_norm(generators(in_file))
        return in_file, max(oft.NO_LIMIT, 2.0 ** math.ceil(math.log2(max(norm.item(), 1.0))))

    def load(self, layer: AdapterLayer) -> None:
        """Copy the factors of a layer in a file, in place, with the file's constraint multiplied into them."""
        name = oft.OFT_BLOCKS if self._rotates_outputs else oft.OFT_VECTORS
        limit = (layer.alpha or 0.0) * self._size if self._rotates_outputs else 0.0
        with torch.no_grad():
            for factor_name, factor in self.factors().items():
                value = layer.factors[factor_name].float()
                if factor_name == name:
                    norm = torch.linalg.vector_norm(generators(layer.factors))
                    value = value * (limit / norm if 0 < limit < norm else 1.0) / self._scale
                factor.copy_(value.reshape(factor.shape))

    def weight_change(self, layer: AdaptedLayer) -> torch.Tensor:
        """Return the change of its layer's weight, in float32."""
        factors, alpha = self.in_file_form({name: factor.detach() for name, factor in self.factors().items()})
        return oft_change(factors, alpha, layer.weight)

    def rotations(self) -> torch.Tensor:
        """Return R - I, of shape (blocks, size, size), in float32; some of them 0 in training with dropout."""
        factors = self.factors()
        with torch.autocast(next(self.parameters()).device.type, enabled=False):
            limited = limit_norm(self._spread(generators(factors)) * self._scale, self._limit)
            turned = cayley(limited) if self._rotates_outputs else cayley_series(limited)
        if self.training and self._dropout:
            turned = turned * (torch.rand(len(turned), 1, 1, device=turned.device) >= self._dropout)
        return turned

    def forward(self, layer: AdaptedLayer, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return the change of the layer's output for its input x."""
        return self._of_outputs(layer, output) if self._rotates_outputs else self._of_inputs(layer, x)

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return a layer's output with the change added: its forward hook."""
        assert isinstance(layer, AdaptedLayer)
        if not self.is_enabled:
            return output
        change, dropout = self(layer, inputs[0], output), self.module_dropout
        return output + (change if dropout is None else dropout.mask(change)).to(output.dtype)

    def _spread(self, of_blocks: torch.Tensor) -> torch.Tensor:
        return spread(of_blocks, self._size)

    def _of_outputs(self, layer: AdaptedLayer, output: torch.Tensor) -> torch.Tensor:
        is_convolution = isinstance(layer, nn.Conv2d)
        plain = output
        for bias in (layer.bias, kept_bias(layer)):  # biases are not rotated
            if bias is not None:
                plain = plain - (bias[:, None, None] if is_convolution else bias).to(plain.dtype)
        change = rotate(self.rotations().to(plain.dtype), plain, 1 if is_convolution else -1)
        scales = self.factors().get(oft.RESCALE)
        if scales is None:
            return change
        along = scales.reshape(-1, 1, 1) if is_convolution else scales.reshape(-1)
        return along * change + (along - 1) * plain

    def _of_inputs(self, layer: AdaptedLayer, x: torch.Tensor) -> torch.Tensor:
        turned, weight = self.rotations(), layer.weight
        if weight[0].numel() == weight.shape[1]:
            dtype = next(self.parameters()).dtype
            x = layer_input(x, dtype, keeps_cast=False)
            x = rotate(turned.to(dtype), x, 1 if isinstance(layer, nn.Conv2d) else -1)
            return apply_weight(layer, layer_input(x, weight.dtype, keeps_cast=False), weight)
        with torch.autocast(x.device.type, enabled=False):
            change = rotate(turned.transpose(-1, -2), weight.float().flatten(1), -1).reshape(weight.shape)
        return apply_weight(layer, x.to(change.dtype), change)


def _begin_delta(
    layer: AdaptedLayer, part: str, path: str, settings: oft.Oft, stored: AdapterLayer | None
) -> RotationDelta:
    """Return an OFT for a layer, not yet on it: the identity, with the shapes of a file if there is one."""
    weight, dtype = layer.weight, dtype_of(settings.dtype)
    shapes = oft.factor_shapes(settings, tuple(weight.shape)) if stored is None else stored.shapes
    factors = {name: torch.empty(shape, dtype=dtype, device=weight.device) for name, shape in shapes.items()}
    return RotationDelta(
        weight.shape,
        {name: factor.fill_(1.0 if name == oft.RESCALE else 0.0) for name, factor in factors.items()},
        constraint=settings.constraint,
        is_scaled=settings.scaled,
        dropout=settings.dropout,
        module_dropout=attach_module_dropout(layer, settings.module_dropout),
    )


OFT_KIND = DeltaKind(oft.OFT.label, "oft", _begin_delta)
