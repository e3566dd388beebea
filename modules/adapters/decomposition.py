"""DoRA (Liu et al. 2024, eq. 5): the changed weight is normalized, and its norms are trained as magnitudes.

`W' = m * (W + dW) / norm(W + dW)`. A norm is taken for each output over all inputs, or for each input over all outputs,
in both cases over the whole kernel. No gradient flows through it (section 4.3 of the paper): the factors `m / norm`
scale either the outputs of the layer with its adapter, or its inputs. This equals a layer with the weight W', for any
kind of adapter, and no weight of the model's size is kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from modules.adapters.changes import does_not_fit, is_per_output, norms_of, weight_shape
from modules.adapters.kept_layers import kept_bias
from modules.adapters.layer_dropout import ModuleDropout
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_types import DORA_SCALE

NAME = "dora"
Layer = nn.Linear | nn.Conv2d


class Decomposition(nn.Module):
    """The magnitudes of one layer, in float32: (out, 1, ...) for each output, or (1, in, ...) for each input."""

    def __init__(
        self,
        change: Callable[[], torch.Tensor],
        *,
        magnitudes: torch.Tensor,
        has_eps: bool,
        dropout: ModuleDropout | None,
    ) -> None:
        """`change()` returns the adapter's change of the weight, in float32 and in the weight's shape."""
        super().__init__()
        # In 16 bits they would differ from the initial norms, and so would change the model before the first step.
        self.magnitudes = nn.Parameter(magnitudes.to(torch.float32))
        self.is_enabled = True
        self._change = change
        self._has_eps = has_eps
        self._dropout = (dropout,)  # in a tuple, so that it does not become a submodule

    def norms(self, layer: Layer) -> torch.Tensor:
        """Return the norms of the changed weight, in the shape of the magnitudes."""
        kind = layer.weight.device.type
        # Weights without values (meta) have no autocast.
        with torch.no_grad(), torch.autocast("cpu" if kind == "meta" else kind, enabled=False):
            changed = layer.weight.float() + self._change()
            return norms_of(changed, is_per_output=self._is_per_output(layer), has_eps=self._has_eps)

    def renew(self, layer: Layer) -> None:
        """Set the magnitudes to the norms, so that they change nothing."""
        with torch.no_grad():
            self.magnitudes.copy_(self.norms(layer))

    def scale(self, layer: Layer) -> torch.Tensor:
        """Return the factors of the outputs or of the inputs, of shape (channels,)."""
        scale = (self.magnitudes / self.norms(layer)).flatten()
        dropout = self._dropout[0]
        return scale if dropout is None else dropout.scale(scale)

    def scale_input(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """Return the scaled inputs of a layer that has magnitudes for its inputs; otherwise x."""
        if not self.is_enabled or self._is_per_output(layer):
            return x
        return x * _along_channels(self.scale(layer), layer).to(x.dtype)

    def scale_output(self, layer: Layer, output: torch.Tensor) -> torch.Tensor:
        """Return the scaled outputs of a layer with its adapter, for magnitudes of the outputs; otherwise the output.

        A bias is not scaled. The scale's difference from 1 is rounded to the output's dtype, not the scale itself.
        """
        if not self.is_enabled or not self._is_per_output(layer):
            return output
        bias = _bias_of(layer)
        product = output if bias is None else output - _along_channels(bias, layer).to(output.dtype)
        return output + product * _along_channels(self.scale(layer) - 1.0, layer).to(output.dtype)

    def _is_per_output(self, layer: Layer) -> bool:
        return is_per_output(self.magnitudes.shape, weight_shape(layer))


def attach_decomposition(
    host: nn.Module,
    layer: Layer,
    change: Callable[[], torch.Tensor],
    *,
    on_outputs: bool,
    has_eps: bool = True,
    dropout: ModuleDropout | None = None,
    magnitudes: torch.Tensor | None = None,
) -> Decomposition:
    """Put magnitudes on a layer that already has its adapter, and return them.

    `host` is the module that computes the layer with its adapter: the layer itself, or peft's around it. Without
    `magnitudes` (of a file) they are the norms of the weight with its present change.
    """
    if magnitudes is None:
        axis, num_other = (0, layer.weight.ndim - 1) if on_outputs else (1, layer.weight.ndim - 2)
        channels = layer.weight.shape[axis]
        shape = (channels, *(1,) * num_other) if on_outputs else (1, channels, *(1,) * num_other)
        decomposition = Decomposition(change, magnitudes=layer.weight.new_ones(shape), has_eps=has_eps, dropout=dropout)
        decomposition.renew(layer)
    else:
        magnitudes = magnitudes.to(layer.weight.device)
        decomposition = Decomposition(change, magnitudes=magnitudes, has_eps=has_eps, dropout=dropout)

    def before(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (decomposition.scale_input(layer, inputs[0]), *inputs[1:])

    def after(module: nn.Module, inputs: Sequence[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        return decomposition.scale_output(layer, output)

    host.add_module(NAME, decomposition)
    host.register_forward_pre_hook(before)
    host.register_forward_hook(after)
    return decomposition


def magnitudes_in(module: nn.Module, layers: Iterable[AdapterLayer], where: str) -> dict[str, torch.Tensor]:
    """Return DoRA's magnitudes of the layers of the file named `where` that have them, by layer.

    Raises DarkroomError if they do not fit the layer.
    """
    by_layer = {}
    for layer in layers:
        if (magnitudes := layer.factors.get(DORA_SCALE)) is None:
            continue
        weight = weight_shape(module.get_submodule(layer.path))
        if is_per_output(magnitudes.shape, weight):
            shape = (weight[0], *(1,) * (len(weight) - 1))
        elif magnitudes.numel() == weight[1]:
            shape = (1, weight[1], *(1,) * (len(weight) - 2))
        else:
            raise does_not_fit(layer, weight, where)
        by_layer[layer.path] = magnitudes.reshape(shape)
    return by_layer


def _along_channels(values: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Return values by channel in the shape that fits the layer's inputs and outputs."""
    return values.reshape(-1, 1, 1) if isinstance(layer, nn.Conv2d) else values


def _bias_of(layer: Layer) -> torch.Tensor | None:
    """Return the sum of the layer's bias and the bias that a kept layer adds to it; None if there is neither."""
    more = kept_bias(layer)
    if layer.bias is None or more is None:
        return layer.bias if more is None else more
    return layer.bias + more
