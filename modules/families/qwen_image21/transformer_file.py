"""How files contain the transformer: with diffusers' names, or as ComfyUI's checkpoints.

ComfyUI's have the gate of an MLP and what it gates in one matrix, and the prefix `model.diffusion_model.` or none
(diffusers' `convert_qwen_image21_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.double_stream import LinearLayer, layer_slots, width_of
from modules.families.parts.single_file.slots import Slot, module_slots
from modules.families.parts.single_file.transformer_file import transformer_file

Config = Mapping[str, Any]
_EMBEDDED_TIME = 256  # the channels of an embedded timestep, in diffusers' class
_GATE_AND_UP = ("gate_layer", "proj")


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `QwenImage21Transformer2DModel` of this config."""
    width, inner = width_of(config), int(config["mlp_ratio"]) * width_of(config)
    square, channels, patch = (width, width), int(config["in_channels"]), int(config["patch_size"]) ** 2
    text, time = "txt_in", "time_text_embed.timestep_embedder"
    yield _same("img_in", (width, patch * channels))
    yield _same(f"{text}.in_layer", (width, int(config["context_in_dim"])))
    yield _same(f"{text}.out_layer", square)
    yield _same(f"{time}.linear_1", (width, _EMBEDDED_TIME))
    yield _same(f"{time}.linear_2", square)
    yield _same("modulation.1", (4 * width, width))
    for block in _blocks(config):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield _same(f"{block}.attn.{name}", square)
        for piece, name in enumerate(_GATE_AND_UP):
            yield LinearLayer(f"{block}.img_mlp.{name}", f"{block}.img_mlp.gate_up", (inner, width), piece, (1, 1))
        yield _same(f"{block}.img_mlp.out", (width, inner))
    yield _same("norm_out.linear", square)
    yield _same("proj_out", (patch * int(config.get("out_channels") or channels), width))


def _same(path: str, shape: tuple[int, int]) -> LinearLayer:
    return LinearLayer(path, path, shape)


def _blocks(config: Config) -> Iterator[str]:
    return (f"transformer_blocks.{index}" for index in range(int(config["num_layers"])))


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config), has_bias=False)
    yield from module_slots("txt_in.text_norm", "txt_in.text_norm", bias=False)
    for block in _blocks(config):
        for name in ("norm_q", "norm_k"):
            yield from module_slots(f"{block}.attn.{name}", f"{block}.attn.{name}", bias=False)


TRANSFORMER_FILE = transformer_file(
    _slots,
    first="txt_in.text_norm.",
    marks=(".txt_in.text_norm.",),
    diffusers_marks=("transformer_blocks.0.img_mlp.gate_layer.",),
)
