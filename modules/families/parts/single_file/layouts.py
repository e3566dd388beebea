"""The layers of a UNet, CLIP text encoders and a VAE in diffusers' and in the original layout, from their configs.

UNet: LDM's `openaimodel.UNetModel` (Rombach et al.). The original numbers its blocks consecutively: `input_blocks.0` is
the first convolution, then one entry per residual block (with its attention) and one per downsampling; `output_blocks`
has one per residual block, with the upsampling as the last member of a level's last entry. diffusers groups the same
layers by level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from modules.families.parts.single_file.slots import Slot, limited, module_slots

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
    return tuple(limited(chain(_ends(config), _down(config), _middle(config), _up(config))))


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


PREFIX = "text_model."
_LAYER = ("layer_norm1", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
_REST = ("layer_norm2", "mlp.fc1", "mlp.fc2")
_OPEN_NAMES = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def clip_slots(config: Mapping[str, Any], *, projection: bool = False) -> tuple[Slot, ...]:
    """Return the slots of a text encoder whose original layout has transformers' own names."""
    return tuple(Slot(key, key) for key in limited(_keys(config, projection=projection)))


def open_clip_slots(config: Mapping[str, Any], *, projection: bool) -> tuple[Slot, ...]:
    """Return the slots of a text encoder in OpenCLIP's layout.

    `projection`: the encoder is a CLIPTextModelWithProjection, whose projection is transposed in the original.
    """
    return tuple(limited(_open_clip(config, projection=projection)))


def _keys(config: Mapping[str, Any], *, projection: bool) -> Iterator[str]:
    for name in ("token", "position"):
        yield f"{PREFIX}embeddings.{name}_embedding.weight"
    for index in range(int(config["num_hidden_layers"])):
        for name in (*_LAYER, *_REST):
            yield from (f"{PREFIX}encoder.layers.{index}.{name}.{p}" for p in ("weight", "bias"))
    yield from (f"{PREFIX}final_layer_norm.{p}" for p in ("weight", "bias"))
    if projection:
        yield "text_projection.weight"


def _open_clip(config: Mapping[str, Any], *, projection: bool) -> Iterator[Slot]:
    yield Slot(f"{PREFIX}embeddings.token_embedding.weight", "token_embedding.weight")
    yield Slot(f"{PREFIX}embeddings.position_embedding.weight", "positional_embedding")
    for index in range(int(config["num_hidden_layers"])):
        path, original = f"{PREFIX}encoder.layers.{index}", f"transformer.resblocks.{index}"
        for ours, theirs in _OPEN_NAMES.items():
            yield from module_slots(f"{path}.{ours}", f"{original}.{theirs}")
        for piece, name in enumerate("qkv"):
            for parameter in ("weight", "bias"):
                key = f"{path}.self_attn.{name}_proj.{parameter}"
                yield Slot(key, f"{original}.attn.in_proj_{parameter}", piece=piece, pieces=3)
    yield from module_slots(f"{PREFIX}final_layer_norm", "ln_final")
    if projection:
        yield Slot("text_projection.weight", "text_projection", transposed=True)


_VAE_RESNET = ("norm1", "conv1", "norm2", "conv2")
_ATTENTION = (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out"))
# The names before diffusers 0.12; folders of that age still have them.
OLD_ATTENTION_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def vae_slots(config: Mapping[str, Any]) -> tuple[Slot, ...]:
    """Return the slots of an `AutoencoderKL` of this config in the original layout."""
    ends = ("quant_conv", "post_quant_conv")
    return (
        *limited(_encoder(config)),
        *limited(_decoder(config)),
        *(s for name in ends if config.get(f"use_{name}", True) for s in module_slots(name, name)),
    )


def modern_key(key: str) -> str:
    """Return a VAE's key with the attention names of diffusers 0.12 and later."""
    path, _, parameter = key.rpartition(".")
    stem, _, name = path.rpartition(".")
    if ".attentions." in key and name in OLD_ATTENTION_NAMES:
        return f"{stem}.{OLD_ATTENTION_NAMES[name]}.{parameter}"
    return key


def _encoder(config: Mapping[str, Any]) -> Iterator[Slot]:
    channels = list(config["block_out_channels"])
    width = channels[0]
    yield from module_slots("encoder.conv_in", "encoder.conv_in")
    for level, wanted in enumerate(channels):
        for index in range(int(config["layers_per_block"])):
            path = f"encoder.down_blocks.{level}.resnets.{index}"
            yield from _vae_resnet(path, f"encoder.down.{level}.block.{index}", shortcut=width != wanted)
            width = wanted
        if level < len(channels) - 1:
            path = f"encoder.down_blocks.{level}.downsamplers.0.conv"
            yield from module_slots(path, f"encoder.down.{level}.downsample.conv")
    yield from _middle_and_end("encoder")


def _decoder(config: Mapping[str, Any]) -> Iterator[Slot]:
    channels = list(reversed(config["block_out_channels"]))
    width = channels[0]
    yield from module_slots("decoder.conv_in", "decoder.conv_in")
    for level, wanted in enumerate(channels):
        theirs = len(channels) - 1 - level
        for index in range(int(config["layers_per_block"]) + 1):
            path = f"decoder.up_blocks.{level}.resnets.{index}"
            yield from _vae_resnet(path, f"decoder.up.{theirs}.block.{index}", shortcut=width != wanted)
            width = wanted
        if level < len(channels) - 1:
            path = f"decoder.up_blocks.{level}.upsamplers.0.conv"
            yield from module_slots(path, f"decoder.up.{theirs}.upsample.conv")
    yield from _middle_and_end("decoder")


def _middle_and_end(half: str) -> Iterator[Slot]:
    middle = f"{half}.mid_block"
    yield from _vae_resnet(f"{middle}.resnets.0", f"{half}.mid.block_1", shortcut=False)
    yield from module_slots(f"{middle}.attentions.0.group_norm", f"{half}.mid.attn_1.norm")
    for ours, theirs in _ATTENTION:
        yield from module_slots(f"{middle}.attentions.0.{ours}", f"{half}.mid.attn_1.{theirs}", conv=True)
    yield from _vae_resnet(f"{middle}.resnets.1", f"{half}.mid.block_2", shortcut=False)
    yield from module_slots(f"{half}.conv_norm_out", f"{half}.norm_out")
    yield from module_slots(f"{half}.conv_out", f"{half}.conv_out")


def _vae_resnet(path: str, original: str, *, shortcut: bool) -> Iterator[Slot]:
    for name in _VAE_RESNET:
        yield from module_slots(f"{path}.{name}", f"{original}.{name}")
    if shortcut:
        yield from module_slots(f"{path}.conv_shortcut", f"{original}.nin_shortcut")
