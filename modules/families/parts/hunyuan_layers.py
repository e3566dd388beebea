"""The layers that the transformers of HunyuanVideo and HunyuanImage 2.1 share: a refiner of the text's states, and
double and single blocks, in diffusers' layout and in the published one.

The published checkpoints have the projections of queries, keys and values in one matrix, in single blocks together with
the first layer of the MLP. Source: diffusers' `convert_hunyuan_video_transformer_to_diffusers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, embedding_layers, width_of

Config = Mapping[str, Any]
EMBEDDED_CHANNELS = 256
"""The channels of an embedded timestep or guidance scale, in diffusers' classes."""
_EQUAL = (1, 1, 1)
_STREAMS = (
    ("img", "", ("to_q", "to_k", "to_v"), "to_out.0"),
    ("txt", "_context", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out"),
)


def refiner_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield the linear layers that refine the text's states before the blocks."""
    width, columns = width_of(config), int(config["text_embed_dim"])
    embed = "context_embedder.time_text_embed"
    yield from embedding_layers(f"{embed}.timestep_embedder", "txt_in.t_embedder", EMBEDDED_CHANNELS, width)
    yield from embedding_layers(f"{embed}.text_embedder", "txt_in.c_embedder", columns, width, ("linear_1", "linear_2"))
    yield LinearLayer("context_embedder.proj_in", "txt_in.input_embedder", (width, columns))
    for ours, theirs in _refiner_blocks(config):
        for piece, name in enumerate(("to_q", "to_k", "to_v")):
            yield LinearLayer(f"{ours}.attn.{name}", f"{theirs}.self_attn_qkv", (width, width), piece, _EQUAL)
        yield LinearLayer(f"{ours}.attn.to_out.0", f"{theirs}.self_attn_proj", (width, width))
        yield LinearLayer(f"{ours}.ff.net.0.proj", f"{theirs}.mlp.fc1", (4 * width, width))
        yield LinearLayer(f"{ours}.ff.net.2", f"{theirs}.mlp.fc2", (width, 4 * width))
        yield LinearLayer(f"{ours}.norm_out.linear", f"{theirs}.adaLN_modulation.1", (2 * width, width))


def refiner_norms(config: Config) -> Iterator[LinearLayer]:
    """Yield the norms of the refiner, which have a weight and a bias."""
    for ours, theirs in _refiner_blocks(config):
        for name in ("norm1", "norm2"):
            yield LinearLayer(f"{ours}.{name}", f"{theirs}.{name}", (width_of(config),))


def block_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield the linear layers of all double and single blocks."""
    for index in range(int(config["num_layers"])):
        yield from _double_block(config, index)
    for index in range(int(config["num_single_layers"])):
        yield from _single_block(config, index)


def end_layers(config: Config, num_patch: int) -> Iterator[LinearLayer]:
    """Yield the linear layers behind the blocks; `num_patch` are the latents of a token."""
    width = width_of(config)
    yield LinearLayer("norm_out.linear", "final_layer.adaLN_modulation.1", (2 * width, width), swapped=True)
    yield LinearLayer("proj_out", "final_layer.linear", (num_patch * int(config["out_channels"]), width))


def query_norms(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the paths of the norms of queries and keys in both layouts."""
    for index in range(int(config["num_layers"])):
        for stream, added in (("img", ""), ("txt", "added_")):
            for name in ("q", "k"):
                ours = f"transformer_blocks.{index}.attn.norm_{added}{name}"
                yield ours, f"double_blocks.{index}.{stream}_attn_{name}_norm"
    for index in range(int(config["num_single_layers"])):
        for name in ("q", "k"):
            yield f"single_transformer_blocks.{index}.attn.norm_{name}", f"single_blocks.{index}.{name}_norm"


def _refiner_blocks(config: Config) -> Iterator[tuple[str, str]]:
    for index in range(int(config["num_refiner_layers"])):
        ours = f"context_embedder.token_refiner.refiner_blocks.{index}"
        yield ours, f"txt_in.individual_token_refiner.blocks.{index}"


def _double_block(config: Config, index: int) -> Iterator[LinearLayer]:
    width, inner = width_of(config), _inner(config)
    ours, theirs = f"transformer_blocks.{index}", f"double_blocks.{index}"
    for stream, end, projections, out in _STREAMS:
        yield LinearLayer(f"{ours}.norm1{end}.linear", f"{theirs}.{stream}_mod.linear", (6 * width, width))
        for piece, name in enumerate(projections):
            yield LinearLayer(f"{ours}.attn.{name}", f"{theirs}.{stream}_attn_qkv", (width, width), piece, _EQUAL)
        yield LinearLayer(f"{ours}.attn.{out}", f"{theirs}.{stream}_attn_proj", (width, width))
        yield LinearLayer(f"{ours}.ff{end}.net.0.proj", f"{theirs}.{stream}_mlp.fc1", (inner, width))
        yield LinearLayer(f"{ours}.ff{end}.net.2", f"{theirs}.{stream}_mlp.fc2", (width, inner))


def _single_block(config: Config, index: int) -> Iterator[LinearLayer]:
    width, inner = width_of(config), _inner(config)
    ours, theirs = f"single_transformer_blocks.{index}", f"single_blocks.{index}"
    shares = (width, width, width, inner)
    yield LinearLayer(f"{ours}.norm.linear", f"{theirs}.modulation.linear", (3 * width, width))
    for piece, name in enumerate(("to_q", "to_k", "to_v")):
        yield LinearLayer(f"{ours}.attn.{name}", f"{theirs}.linear1", (width, width), piece, shares)
    yield LinearLayer(f"{ours}.proj_mlp", f"{theirs}.linear1", (inner, width), 3, shares)
    yield LinearLayer(f"{ours}.proj_out", f"{theirs}.linear2", (width, width + inner))


def _inner(config: Config) -> int:
    return int(width_of(config) * float(config["mlp_ratio"]))
