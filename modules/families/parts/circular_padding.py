"""Circular padding: convolutions that see the opposite edge of the image beyond an edge, for seamless tiles.

A layer's input is padded by a hook before the layer, which then has no padding of its own. So whatever else computes
from the layer's input, such as an adapter, gets the padded input, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import HunyuanVideoCausalConv3d
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from diffusers.models.downsampling import Downsample2D
from torch import nn


@dataclass(frozen=True)
class CircularPadding:
    """Pads the input of a convolution by wrapping it around, as the convolution's forward pre-hook.

    `left`, `right`, `top` and `bottom` are in elements; torch's order has the last axis first.
    """

    left: int
    right: int
    top: int
    bottom: int

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs, (B, C, H, W) or (B, C, frames, H, W) first, with that one padded."""
        sides = (self.left, self.right, self.top, self.bottom)
        flat_BCHW = inputs[0].flatten(1, -3)
        padded_BCHW = nn.functional.pad(flat_BCHW, sides, mode="circular")
        return (padded_BCHW.unflatten(1, inputs[0].shape[1:-2]), *inputs[1:])


def pad_circularly(part: nn.Module) -> None:
    """Make every convolution of a part pad circularly, in place; before adapters are put on it."""
    for module in part.modules():
        if isinstance(module, Downsample2D) and module.use_conv and module.padding == 0:
            # A VAE's: it appends a row and a column of zeros itself, unless its `padding` states that its layer pads.
            module.padding = 1
            module.conv.register_forward_pre_hook(CircularPadding(0, 1, 0, 1))
        elif isinstance(module, nn.ZeroPad2d):
            left, right, top, bottom = module.padding
            module.padding = (0, 0, 0, 0)
            module.register_forward_pre_hook(CircularPadding(left, right, top, bottom))
        elif isinstance(module, QwenImageCausalConv3d) and any(module._padding[:4]):
            left, right, top, bottom, *frames = module._padding  # the padding that it adds itself before it convolves
            module._padding = (0, 0, 0, 0, *frames)
            module.register_forward_pre_hook(CircularPadding(left, right, top, bottom))
        elif isinstance(module, HunyuanVideoCausalConv3d) and any(module.time_causal_padding[:4]):
            left, right, top, bottom, *frames = module.time_causal_padding
            module.time_causal_padding = (0, 0, 0, 0, *frames)
            module.register_forward_pre_hook(CircularPadding(left, right, top, bottom))
        elif isinstance(module, nn.Conv2d) and any(module.padding):
            rows, columns = (int(n) for n in module.padding)
            module.padding = (0, 0)
            module.register_forward_pre_hook(CircularPadding(columns, columns, rows, rows))


def is_circular(part: nn.Module) -> bool:
    """Return whether a part pads circularly."""
    return any(_paddings(module) for module in part.modules())


def pad_as(source: nn.Module, layer: nn.Module) -> None:
    """Make a layer with the same input as `source`, and the same amount of padding, pad as `source` does."""
    for padding in _paddings(source):
        layer.register_forward_pre_hook(padding)


def pad_input(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the input of a layer as the layer pads it circularly; x itself if it does not."""
    for padding in _paddings(layer):
        (x,) = padding(layer, (x,))
    return x


def _paddings(layer: nn.Module) -> list[CircularPadding]:
    hooks: list[torch.utils.hooks.RemovableHandle | Any] = list(layer._forward_pre_hooks.values())
    return [hook for hook in hooks if isinstance(hook, CircularPadding)]
