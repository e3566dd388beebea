"""How files contain the transformer: diffusers' names, and the published checkpoints' names, which ComfyUI reads.

The layout has the same tensors under other names, but for the modulation tables of the blocks: their six rows are one
after the other (diffusers' `convert_krea2_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from modules.families.parts.single_file.slots import Slot, module_slots
from modules.families.parts.single_file.transformer_file import transformer_file

Config = Mapping[str, Any]
_ATTENTION = {"to_q": "wq", "to_k": "wk", "to_v": "wv", "to_out.0": "wo", "to_gate": "gate"}
_NORMS = {
    "norm1.weight": "prenorm.scale",
    "norm2.weight": "postnorm.scale",
    "attn.norm_q.weight": "attn.qknorm.qnorm.scale",
    "attn.norm_k.weight": "attn.qknorm.knorm.scale",
}
_TENSORS = {
    "txt_in.norm.weight": "txtmlp.0.scale",
    "final_layer.norm.weight": "last.norm.scale",
    "final_layer.scale_shift_table": "last.modulation.lin",
}
_MODULATIONS = 6


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer: its paths in diffusers and in the original layout, and its weight's shape (out, in)."""

    path: str
    original: str
    shape: tuple[int, int]
    bias: bool = True


def width_of(config: Config) -> int:
    """Return the width of the tokens."""
    return int(config["num_attention_heads"]) * int(config["attention_head_dim"])


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `Krea2Transformer2DModel` of this config."""
    width, text, channels = width_of(config), int(config["text_hidden_dim"]), int(config["in_channels"])
    yield LinearLayer("img_in", "first", (width, channels))
    yield LinearLayer("time_embed.linear_1", "tmlp.0", (width, int(config["timestep_embed_dim"])))
    yield LinearLayer("time_embed.linear_2", "tmlp.2", (width, width))
    yield LinearLayer("time_mod_proj", "tproj.1", (_MODULATIONS * width, width))
    yield LinearLayer("text_fusion.projector", "txtfusion.projector", (1, int(config["num_text_layers"])), bias=False)
    yield LinearLayer("txt_in.linear_1", "txtmlp.1", (width, text))
    yield LinearLayer("txt_in.linear_2", "txtmlp.3", (width, width))
    yield LinearLayer("final_layer.linear", "last.linear", (channels, width))
    head = int(config["attention_head_dim"])
    keys = int(config["num_key_value_heads"] or config["num_attention_heads"]) * head
    for ours, theirs in _blocks(config):
        yield from _block_layers(ours, theirs, width, keys, int(config["intermediate_size"]))
    head = text // int(config["text_num_attention_heads"])
    keys = int(config["text_num_key_value_heads"] or config["text_num_attention_heads"]) * head
    for ours, theirs in _text_blocks(config):
        yield from _block_layers(ours, theirs, text, keys, int(config["text_intermediate_size"]))


def _blocks(config: Config) -> Iterator[tuple[str, str]]:
    for index in range(int(config["num_layers"])):
        yield f"transformer_blocks.{index}", f"blocks.{index}"


def _text_blocks(config: Config) -> Iterator[tuple[str, str]]:
    for group in ("layerwise", "refiner"):
        for index in range(int(config[f"num_{group}_text_blocks"])):
            yield f"text_fusion.{group}_blocks.{index}", f"txtfusion.{group}_blocks.{index}"


def _block_layers(ours: str, theirs: str, width: int, keys: int, inner: int) -> Iterator[LinearLayer]:
    """Yield the layers of a block: `keys` is the width of its keys and values, which several queries share."""
    for name, original in _ATTENTION.items():
        rows = keys if name in ("to_k", "to_v") else width
        yield LinearLayer(f"{ours}.attn.{name}", f"{theirs}.attn.{original}", (rows, width), bias=False)
    for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        yield LinearLayer(f"{ours}.ff.{name}", f"{theirs}.mlp.{name}", shape, bias=False)


def _slots(config: Config) -> Iterator[Slot]:
    for layer in transformer_layers(config):
        yield from module_slots(layer.path, layer.original, bias=layer.bias)
    for ours, theirs in _TENSORS.items():
        yield Slot(ours, theirs)
    for ours, theirs in (*_blocks(config), *_text_blocks(config)):
        for norm, original in _NORMS.items():
            yield Slot(f"{ours}.{norm}", f"{theirs}.{original}")
    for ours, theirs in _blocks(config):
        yield Slot(f"{ours}.scale_shift_table", f"{theirs}.mod.lin", joined_rows=_MODULATIONS)


TRANSFORMER_FILE = transformer_file(
    _slots,
    first="txtfusion.projector.",
    marks=(".txtfusion.projector.", ".text_fusion.projector."),
    diffusers_marks=("text_fusion.",),
)
