"""How files contain the transformer: diffusers' names, and the published checkpoints' names, which ComfyUI reads.

The projections of queries, keys and values are one matrix there, those of a prompt's keys and values another. The
checkpoints have two tensors more: the positions, which are computed, and the embedding of a missing prompt, which
sampling never uses (the authors' `convert_pixart_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.double_stream import LinearLayer, layer_slots, width_of
from modules.families.parts.single_file.slots import Slot
from modules.families.parts.single_file.transformer_file import transformer_file
from modules.families.pixart.settings import has_size_conditions

Config = Mapping[str, Any]
MISSING_PROMPT = "y_embedder.y_embedding"
"""The embedding of a missing prompt, one row for each token that the model reads."""
_EMBEDDED = 256  # the channels of an embedded number, in diffusers' class
_MLP_RATIO = 4
_SIZES = {"resolution": "csize_embedder", "aspect_ratio": "ar_embedder"}


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `PixArtTransformer2DModel` of this config, and its first one, a convolution."""
    width, side, channels = width_of(config), int(config["patch_size"]), int(config["in_channels"])
    yield LinearLayer("pos_embed.proj", "x_embedder.proj", (width, channels, side, side))
    yield from _embedder("timestep", "t_embedder", width)
    if has_size_conditions(config):
        for name, original in _SIZES.items():
            yield from _embedder(name, original, width // 3)
    yield LinearLayer("adaln_single.linear", "t_block.1", (6 * width, width))
    text = int(config["caption_channels"])
    yield LinearLayer("caption_projection.linear_1", "y_embedder.y_proj.fc1", (width, text))
    yield LinearLayer("caption_projection.linear_2", "y_embedder.y_proj.fc2", (width, width))
    for index in range(int(config["num_layers"])):
        yield from _block(index, width, int(config["cross_attention_dim"]))
    patch = side**2 * int(config.get("out_channels") or channels)
    yield LinearLayer("proj_out", "final_layer.linear", (patch, width))


def _embedder(name: str, original: str, width: int) -> Iterator[LinearLayer]:
    path = f"adaln_single.emb.{name}_embedder"
    yield LinearLayer(f"{path}.linear_1", f"{original}.mlp.0", (width, _EMBEDDED))
    yield LinearLayer(f"{path}.linear_2", f"{original}.mlp.2", (width, width))


def _block(index: int, width: int, text: int) -> Iterator[LinearLayer]:
    """Yield the layers of a block; layers that share a matrix in the original layout follow each other."""
    ours, theirs = f"transformer_blocks.{index}", f"blocks.{index}"
    for piece, name in enumerate("qkv"):
        yield LinearLayer(f"{ours}.attn1.to_{name}", f"{theirs}.attn.qkv", (width, width), piece, (1, 1, 1))
    yield LinearLayer(f"{ours}.attn1.to_out.0", f"{theirs}.attn.proj", (width, width))
    yield LinearLayer(f"{ours}.attn2.to_q", f"{theirs}.cross_attn.q_linear", (width, width))
    for piece, name in enumerate("kv"):
        yield LinearLayer(f"{ours}.attn2.to_{name}", f"{theirs}.cross_attn.kv_linear", (width, text), piece, (1, 1))
    yield LinearLayer(f"{ours}.attn2.to_out.0", f"{theirs}.cross_attn.proj", (width, width))
    yield LinearLayer(f"{ours}.ff.net.0.proj", f"{theirs}.mlp.fc1", (_MLP_RATIO * width, width))
    yield LinearLayer(f"{ours}.ff.net.2", f"{theirs}.mlp.fc2", (width, _MLP_RATIO * width))


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config))
    for index in range(int(config["num_layers"])):
        yield Slot(f"transformer_blocks.{index}.scale_shift_table", f"blocks.{index}.scale_shift_table")
    yield Slot("scale_shift_table", "final_layer.scale_shift_table")


TRANSFORMER_FILE = transformer_file(
    _slots,
    first="blocks.0.cross_attn.",
    marks=(".t_block.1.", ".adaln_single.emb.timestep_embedder."),
    diffusers_marks=("transformer_blocks.",),
    unused=("pos_embed", MISSING_PROMPT),
)
