"""The layers of a UNet in diffusers' and in the original layout, from its config.

The original is LDM's `openaimodel.UNetModel` (Rombach et al.). It numbers its blocks consecutively: `input_blocks.0` is
the first convolution, then one entry per residual block (with its attention) and one per downsampling; `output_blocks`
has one per residual block, with the upsampling as the last member of a level's last entry. diffusers groups the same
layers by level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from modules.families.parts.single_file.slots import Slot, limit_layers, module_slots

Sort = Literal["linear", "conv", "norm"]

_RESNET: tuple[tuple[str, str, Sort], ...] = (
    ("norm1", "in_layers.0", "norm"),
    ("conv1", "in_layers.2", "conv"),
    ("time_emb_proj", "emb_layers.1", "linear"),
    ("norm2", "out_layers.0", "norm"),
    ("conv2", "out_layers.3", "conv"),
)
# The layers inside a transformer block, with the same names in both layouts. Query, key and value have no bias.
_TRANSFORMER: tuple[tuple[str, Sort, bool], ...] = (
    ("norm1", "norm", True),
    *((f"attn1.to_{x}", "linear", x == "out.0") for x in ("q", "k", "v", "out.0")),
    ("norm2", "norm", True),
    *((f"attn2.to_{x}", "linear", x == "out.0") for x in ("q", "k", "v", "out.0")),
    ("norm3", "norm", True),
    ("ff.net.0.proj", "linear", True),
    ("ff.net.2", "linear", True),
)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with weights: its dotted path in diffusers and in the original layout, and its type."""

    path: str
    original: str
    sort: Sort
    bias: bool = True


def unet_slots(config: Mapping[str, Any]) -> tuple[Slot, ...]:
    """Return the slots of a `UNet2DConditionModel` of this config in the original layout."""
    return tuple(s for layer in unet_layers(config) for s in module_slots(layer.path, layer.original, bias=layer.bias))


def unet_layers(config: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Return every layer of a `UNet2DConditionModel` of this config, in both layouts.

    Raises ValueError for more layers than any model has: a config may come from a file.
    """
    return tuple(limit_layers(chain(_ends(config), _down(config), _middle(config), _up(config))))


def _ends(config: Mapping[str, Any]) -> Iterator[Layer]:
    yield Layer("time_embedding.linear_1", "time_embed.0", "linear")
    yield Layer("time_embedding.linear_2", "time_embed.2", "linear")
    if config.get("addition_embed_type") == "text_time":
        yield Layer("add_embedding.linear_1", "label_emb.0.0", "linear")
        yield Layer("add_embedding.linear_2", "label_emb.0.2", "linear")
    yield Layer("conv_in", "input_blocks.0.0", "conv")
    yield Layer("conv_norm_out", "out.0", "norm")
    yield Layer("conv_out", "out.2", "conv")


def _down(config: Mapping[str, Any]) -> Iterator[Layer]:
    channels = list(config["block_out_channels"])
    entry = 0
    width = channels[0]
    for level, kind in enumerate(config["down_block_types"]):
        for index in range(_per_level(config, "layers_per_block", level)):
            entry += 1
            block = f"down_blocks.{level}"
            shortcut = width != channels[level]
            width = channels[level]
            yield from _resnet(f"{block}.resnets.{index}", f"input_blocks.{entry}.0", shortcut=shortcut)
            if _has_attention(kind):
                path, original = f"{block}.attentions.{index}", f"input_blocks.{entry}.1"
                yield from _attention(path, original, config, _depth(config, level))
        if level < len(channels) - 1:
            entry += 1
            yield Layer(f"down_blocks.{level}.downsamplers.0.conv", f"input_blocks.{entry}.0.op", "conv")


def _middle(config: Mapping[str, Any]) -> Iterator[Layer]:
    last = len(config["block_out_channels"]) - 1
    yield from _resnet("mid_block.resnets.0", "middle_block.0", shortcut=False)
    yield from _attention("mid_block.attentions.0", "middle_block.1", config, _depth(config, last))
    yield from _resnet("mid_block.resnets.1", "middle_block.2", shortcut=False)


def _up(config: Mapping[str, Any]) -> Iterator[Layer]:
    num_levels = len(config["block_out_channels"])
    entry = -1
    for level, kind in enumerate(config["up_block_types"]):
        mirrored = num_levels - 1 - level
        for index in range(_per_level(config, "layers_per_block", mirrored) + 1):
            entry += 1
            block = f"up_blocks.{level}"
            # The input is concatenated with the skip connection, so the width always changes.
            yield from _resnet(f"{block}.resnets.{index}", f"output_blocks.{entry}.0", shortcut=True)
            if _has_attention(kind):
                path, original = f"{block}.attentions.{index}", f"output_blocks.{entry}.1"
                yield from _attention(path, original, config, _depth(config, mirrored))
        if level < num_levels - 1:
            member = 2 if _has_attention(kind) else 1
            yield Layer(f"up_blocks.{level}.upsamplers.0.conv", f"output_blocks.{entry}.{member}.conv", "conv")


def _resnet(path: str, original: str, *, shortcut: bool) -> Iterator[Layer]:
    for ours, theirs, sort in _RESNET:
        yield Layer(f"{path}.{ours}", f"{original}.{theirs}", sort)
    if shortcut:
        yield Layer(f"{path}.conv_shortcut", f"{original}.skip_connection", "conv")


def _attention(path: str, original: str, config: Mapping[str, Any], depth: int) -> Iterator[Layer]:
    projection: Sort = "linear" if config.get("use_linear_projection") else "conv"
    yield Layer(f"{path}.norm", f"{original}.norm", "norm")
    yield Layer(f"{path}.proj_in", f"{original}.proj_in", projection)
    for index in range(depth):
        for name, sort, bias in _TRANSFORMER:
            inner = f"transformer_blocks.{index}.{name}"
            yield Layer(f"{path}.{inner}", f"{original}.{inner}", sort, bias)
    yield Layer(f"{path}.proj_out", f"{original}.proj_out", projection)


def _has_attention(kind: str) -> bool:
    return kind.startswith("CrossAttn")


def _depth(config: Mapping[str, Any], level: int) -> int:
    return _per_level(config, "transformer_layers_per_block", level)


def _per_level(config: Mapping[str, Any], name: str, level: int) -> int:
    """Return a level's value of a setting that is one number for all levels, or one for each."""
    value = config.get(name) or 1
    return int(value[level]) if isinstance(value, list | tuple) else int(value)
