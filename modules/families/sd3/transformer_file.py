"""How files contain the transformer: diffusers' names, and the published checkpoints' names, which ComfyUI reads.

A joint block has the layers of the image (`x_block`) and of the text (`context_block`), with the projections of
queries, keys and values in one matrix each. The last block has no output for the text, and the halves of its last
modulation of the text, as of the output's, are in the other order (diffusers'
`convert_sd3_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from modules.families.parts.double_stream import LinearLayer, layer_slots, width_of
from modules.families.parts.single_file.slots import Slot
from modules.families.parts.single_file.transformer_file import transformer_file

Config = Mapping[str, Any]
FIRST_BLOCK = "joint_blocks.0."
"""The beginning of names that every file in the original layout has."""
_EMBEDDED = 256  # the channels of an embedded timestep, in diffusers' class
_MLP_RATIO = 4
_IMAGE, _TEXT = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of an `SD3Transformer2DModel` of this config, and its first one, a convolution."""
    width, side = width_of(config), int(config["patch_size"])
    channels = int(config["in_channels"])
    yield LinearLayer("pos_embed.proj", "x_embedder.proj", (width, channels, side, side))
    embedders = {"timestep": ("t_embedder", _EMBEDDED), "text": ("y_embedder", int(config["pooled_projection_dim"]))}
    for name, (original, columns) in embedders.items():
        path = f"time_text_embed.{name}_embedder"
        yield LinearLayer(f"{path}.linear_1", f"{original}.mlp.0", (width, columns))
        yield LinearLayer(f"{path}.linear_2", f"{original}.mlp.2", (width, width))
    context = (int(config["caption_projection_dim"]), int(config["joint_attention_dim"]))
    yield LinearLayer("context_embedder", "context_embedder", context)
    for index in range(int(config["num_layers"])):
        yield from _block(config, index)
    yield LinearLayer("norm_out.linear", "final_layer.adaLN_modulation.1", (2 * width, width), swapped=True)
    patch = side**2 * int(config.get("out_channels") or channels)
    yield LinearLayer("proj_out", "final_layer.linear", (patch, width))


def has_dual_attention(config: Config, index: int) -> bool:
    """Return whether a block has a second attention, of the image alone."""
    return index in tuple(config.get("dual_attention_layers") or ())


def _block(config: Config, index: int) -> Iterator[LinearLayer]:
    """Yield the layers of a joint block; layers that share a matrix in the original layout follow each other."""
    width, is_last = width_of(config), index == int(config["num_layers"]) - 1
    square, inner = (width, width), _MLP_RATIO * width
    ours, image, text = f"transformer_blocks.{index}", *_streams(index)
    has_dual = has_dual_attention(config, index)
    yield LinearLayer(f"{ours}.norm1.linear", f"{image}.adaLN_modulation.1", ((9 if has_dual else 6) * width, width))
    rows = (2 if is_last else 6) * width
    yield LinearLayer(f"{ours}.norm1_context.linear", f"{text}.adaLN_modulation.1", (rows, width), swapped=is_last)
    yield from _attention(f"{ours}.attn", _IMAGE, f"{image}.attn", square, out="to_out.0")
    yield from _attention(f"{ours}.attn", _TEXT, f"{text}.attn", square, out="" if is_last else "to_add_out")
    if has_dual:
        yield from _attention(f"{ours}.attn2", _IMAGE, f"{image}.attn2", square, out="to_out.0")
    for end, theirs in (("", image),) if is_last else (("", image), ("_context", text)):
        yield LinearLayer(f"{ours}.ff{end}.net.0.proj", f"{theirs}.mlp.fc1", (inner, width))
        yield LinearLayer(f"{ours}.ff{end}.net.2", f"{theirs}.mlp.fc2", (width, inner))


def _attention(
    path: str, names: Collection[str], original: str, square: tuple[int, int], *, out: str
) -> Iterator[LinearLayer]:
    for piece, name in enumerate(names):
        yield LinearLayer(f"{path}.{name}", f"{original}.qkv", square, piece, (1, 1, 1))
    if out:
        yield LinearLayer(f"{path}.{out}", f"{original}.proj", square)


def _streams(index: int) -> tuple[str, str]:
    return f"joint_blocks.{index}.x_block", f"joint_blocks.{index}.context_block"


def _slots(config: Config) -> Iterator[Slot]:
    yield Slot("pos_embed.pos_embed", "pos_embed")
    yield from layer_slots(transformer_layers(config))
    if not config.get("qk_norm"):
        return
    for index in range(int(config["num_layers"])):
        image, text = _streams(index)
        ours = f"transformer_blocks.{index}"
        for letter in "qk":
            yield Slot(f"{ours}.attn.norm_{letter}.weight", f"{image}.attn.ln_{letter}.weight")
            yield Slot(f"{ours}.attn.norm_added_{letter}.weight", f"{text}.attn.ln_{letter}.weight")
            if has_dual_attention(config, index):
                yield Slot(f"{ours}.attn2.norm_{letter}.weight", f"{image}.attn2.ln_{letter}.weight")


TRANSFORMER_FILE = transformer_file(
    _slots,
    first=FIRST_BLOCK,
    marks=(".joint_blocks.0.x_block.", ".transformer_blocks.0.norm1_context.linear."),
    diffusers_marks=("transformer_blocks.",),
    others=(".context_embedder.token_refiner.",),  # HunyuanVideo has double blocks of the same names
)
