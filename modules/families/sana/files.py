"""The files of Sana: folders, the names of layers in LoRA files, and files of the transformer alone.

diffusers' names have the prefix `transformer.`, and its pipeline loads them. ComfyUI does not have the model; nodes of
others read its published checkpoints.

These checkpoints have the projections of queries, keys and values in one matrix, the projections of a prompt's keys and
values in another. They also have positions, which only models of 2048 px and more use and which are computed, the
embedding of a missing prompt, and a layer that predicted the loss (diffusers' `convert_sana_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, embedding_layers, layer_slots, targets_from, width_of
from modules.families.parts.patch_positions import fill_patch_positions
from modules.families.parts.single_file.slots import Slot
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_denoiser, transformer_file
from modules.families.published import PublishedModel
from modules.formats.program_table import ALL, NAMES, NO_MODEL, UNMEASURED, Row, none

Config = Mapping[str, Any]
_EMBEDDED = 256  # the channels of the embedded time, in diffusers' class


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield the layers of a `SanaTransformer2DModel` of this config that adapters can change.

    Each block also has a convolution within single channels, which has no matrix.
    """
    width, side, channels = width_of(config), int(config["patch_size"]), int(config["in_channels"])
    yield LinearLayer("patch_embed.proj", "x_embedder.proj", (width, channels, side, side))
    yield from embedding_layers("time_embed.emb.timestep_embedder", "t_embedder", _EMBEDDED, width)
    yield LinearLayer("time_embed.linear", "t_block.1", (6 * width, width))
    text = int(config["caption_channels"])
    yield LinearLayer("caption_projection.linear_1", "y_embedder.y_proj.fc1", (width, text))
    yield LinearLayer("caption_projection.linear_2", "y_embedder.y_proj.fc2", (width, width))
    for index in range(int(config["num_layers"])):
        yield from _block(index, config)
    yield LinearLayer("proj_out", "final_layer.linear", (side**2 * int(config["out_channels"] or channels), width))


def _block(index: int, config: Config) -> Iterator[LinearLayer]:
    """Yield the layers of a block; layers that share a matrix in the original layout follow each other."""
    ours, theirs, width = f"transformer_blocks.{index}", f"blocks.{index}", width_of(config)
    text, inner = int(config["cross_attention_dim"]), int(float(config["mlp_ratio"]) * width)
    read = int(config["num_cross_attention_heads"]) * int(config["cross_attention_head_dim"])
    bias = bool(config.get("attention_bias"))
    for piece, name in enumerate("qkv"):
        yield LinearLayer(f"{ours}.attn1.to_{name}", f"{theirs}.attn.qkv", (width, width), piece, (1, 1, 1), bias=bias)
    yield LinearLayer(f"{ours}.attn1.to_out.0", f"{theirs}.attn.proj", (width, width))
    yield LinearLayer(f"{ours}.attn2.to_q", f"{theirs}.cross_attn.q_linear", (read, width))
    for piece, name in enumerate("kv"):
        yield LinearLayer(f"{ours}.attn2.to_{name}", f"{theirs}.cross_attn.kv_linear", (read, text), piece, (1, 1))
    yield LinearLayer(f"{ours}.attn2.to_out.0", f"{theirs}.cross_attn.proj", (width, read))
    yield LinearLayer(f"{ours}.ff.conv_inverted", f"{theirs}.mlp.inverted_conv.conv", (2 * inner, width, 1, 1))
    yield LinearLayer(f"{ours}.ff.conv_point", f"{theirs}.mlp.point_conv.conv", (width, inner, 1, 1), bias=False)


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config))
    yield Slot("caption_norm.weight", "attention_y_norm.weight")
    yield Slot("scale_shift_table", "final_layer.scale_shift_table")
    for index in range(int(config["num_layers"])):
        ours, theirs = f"transformer_blocks.{index}", f"blocks.{index}"
        yield Slot(f"{ours}.scale_shift_table", f"{theirs}.scale_shift_table")
        yield from layer_slots([LinearLayer(f"{ours}.ff.conv_depth", f"{theirs}.mlp.depth_conv.conv", ())])
        if config.get("qk_norm"):
            for attention, original in (("attn1", "attn"), ("attn2", "cross_attn")):
                for name in "qk":
                    yield Slot(f"{ours}.{attention}.norm_{name}.weight", f"{theirs}.{original}.{name}_norm.weight")


def fill_positions(transformer: Any) -> None:
    """Make the positions of patches, which files do not have; most models have none."""
    fill_patch_positions(transformer.patch_embed, width_of(transformer.config))


TRANSFORMER_FILE = transformer_file(
    _slots,
    first="blocks.0.mlp.inverted_conv.",
    marks=(".mlp.inverted_conv.", ".ff.conv_inverted."),
    diffusers_marks=("transformer_blocks.",),
    unused=("pos_embed", "y_embedder.y_embedding", "logvar_linear.weight", "logvar_linear.bias"),
)


# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_attention_heads", "attention_head_dim", "num_cross_attention_heads", "cross_attention_dim"),
    *("cross_attention_head_dim", "caption_channels", "mlp_ratio", "qk_norm", "sample_size", "interpolation_scale"),
)
_OTHERS: Row = {**UNMEASURED, **dict.fromkeys(("ComfyUI", "diffusers 0.31", "sd-scripts"), NO_MODEL)}
_LOADED: Row = {**_OTHERS, "diffusers": ALL}
_IGNORED: Row = {**_OTHERS, "diffusers": none("its pipeline of Sana reads no other names than its own")}
# diffusers was measured at toy size (2026-11-29).
_NAMING_ROWS = {**dict.fromkeys(NAMES, _IGNORED), "PEFT, denoiser": _LOADED}


MODEL = PublishedModel(
    name="sana",
    label="Sana",
    family="sana",
    architecture="sana",
    implementation="https://github.com/NVlabs/Sana",
    adapter_targets=targets_from(transformer_layers),
    repository="Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers",
    pipelines={"": "SanaPipeline"},
    single_file=single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
    versions={},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "sana")
