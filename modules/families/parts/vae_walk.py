"""The memory walks of an `AutoencoderKL`'s encoder and decoder (Rombach et al. 2022), as diffusers computes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.families.parts.unet_walk import resnet
from modules.memory.tape import Array
from modules.memory.walk import Walk

Config = Mapping[str, Any]


def encode_pass(walk: Walk, config: Config, *, width_px: int, height_px: int, batch: int = 1) -> Array:
    """Return the moments of the latents of images of that size."""
    channels = [int(n) for n in config["block_out_channels"]]
    x = walk.conv("encoder.conv_in", walk.new((batch, int(config["in_channels"]), height_px, width_px)), channels[0])
    for level, wide in enumerate(channels):
        x = _down(walk, config, level, x, wide, is_last=level == len(channels) - 1)
    moments = 2 * int(config["latent_channels"])
    x = _end(walk, "encoder", _middle(walk, "encoder", x, channels[-1]), moments)
    return walk.conv("quant_conv", x, moments, kernel=1) if config.get("use_quant_conv", True) else x


def decode_pass(
    walk: Walk, config: Config, *, width_px: int, height_px: int, needs_grad: bool = False, batch: int = 1
) -> Array:
    """Return images of that size from their latents; `needs_grad` where a gradient goes back to the latents."""
    factor, latent = 2 ** (len(config["block_out_channels"]) - 1), int(config["latent_channels"])
    x = walk.new((batch, latent, height_px // factor, width_px // factor), needs_grad=needs_grad)
    return walk.whole(lambda a: _decode(walk, config, a), x)


def _decode(walk: Walk, config: Config, x: Array) -> Array:
    channels = [int(n) for n in reversed(config["block_out_channels"])]
    if config.get("use_post_quant_conv", True):
        x = walk.conv("post_quant_conv", x, int(config["latent_channels"]), kernel=1)
    x = walk.conv("decoder.conv_in", x, channels[0])
    x = _middle(walk, "decoder", x, channels[0])
    for level, wide in enumerate(channels):
        x = _up(walk, config, level, x, wide, is_last=level == len(channels) - 1)
    return _end(walk, "decoder", x, int(config["out_channels"]))


# diffusers' loop over the levels keeps a reference to each level's input until the level is done.


def _down(walk: Walk, config: Config, level: int, entering: Array, width: int, *, is_last: bool) -> Array:
    path, x = f"encoder.down_blocks.{level}", entering
    for index in range(int(config["layers_per_block"])):
        x = _resnet(walk, f"{path}.resnets.{index}", x, width)
    if is_last:
        return x
    padded = walk.copy(x)  # by one pixel at two edges
    return walk.conv(f"{path}.downsamplers.0.conv", padded, width, stride=2)


def _up(walk: Walk, config: Config, level: int, entering: Array, width: int, *, is_last: bool) -> Array:
    path, x = f"decoder.up_blocks.{level}", entering
    for index in range(int(config["layers_per_block"]) + 1):
        x = _resnet(walk, f"{path}.resnets.{index}", x, width)
    return x if is_last else walk.conv(f"{path}.upsamplers.0.conv", walk.upsampled(x), width)


def _resnet(walk: Walk, path: str, x: Array, width: int) -> Array:
    return walk.block(path, lambda a: resnet(walk, path, a, width), x)


def _middle(walk: Walk, half: str, x: Array, width: int) -> Array:
    path = f"{half}.mid_block"
    x = _resnet(walk, f"{path}.resnets.0", x, width)
    name = f"{path}.attentions.0"
    x = walk.block(name, lambda a: _attention(walk, name, a), x, is_transformer=True)
    return _resnet(walk, f"{path}.resnets.1", x, width)


def _attention(walk: Walk, path: str, x: Array) -> Array:
    """One head over all positions (`Attention` with a residual connection)."""
    batch, channels, height, width = x.shape
    normed = walk.group_norm(f"{path}.group_norm", x).view(batch, height * width, channels)
    query, key, value = (walk.linear(f"{path}.to_{n}", normed, channels) for n in "qkv")
    del normed
    attended = walk.linear(f"{path}.to_out.0", walk.attention(query, key, value, heads=1), channels)
    return walk.copy(walk.add(attended.view(*x.shape), x))


def _end(walk: Walk, half: str, x: Array, width: int) -> Array:
    return walk.conv(f"{half}.conv_out", walk.activation(walk.group_norm(f"{half}.conv_norm_out", x)), width)
