"""The layers of transformers with double-stream and single-stream blocks, in diffusers' and in the original layout.

A double block has two streams, of the text and of the image, which attend to each other (Esser et al. 2024, section 4);
a single block treats both as one sequence. The original layout has the projections of queries, keys and values in one
matrix, in single blocks together with the first layer of the MLP, and the two halves of the last modulation in the
other order (diffusers' `convert_flux_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, layer_slots, width_of
from modules.families.parts.single_file.slots import Slot
from modules.formats.program_table import ALL, SGM_NAMES, UNKNOWN, UNMEASURED, Row, none

Config = Mapping[str, Any]
FIRST_BLOCK = "double_blocks.0."
"""The beginning of names that every file in the original layout has."""
_MLP_RATIO = 4
STREAMS = (("img", "", ("to_q", "to_k", "to_v"), "to_out.0"), ("txt", "_context", ("q", "k", "v"), "to_add_out"))
_NATIVE: Row = {**UNMEASURED, "ComfyUI": ALL, "diffusers": ALL, "diffusers 0.31": UNKNOWN}
_NOT_OUTSIDE = none("does not map kohya's names outside the blocks")
NAMING_ROWS: Mapping[str, Row] = {
    SGM_NAMES: {
        **_NATIVE,
        "diffusers": {"": ALL, "outside": _NOT_OUTSIDE},
        "sd-scripts": {"": ALL, "outside": UNKNOWN},
    },
    "ComfyUI, original names": {"ComfyUI": ALL, "Forge": UNKNOWN, "sd-scripts": UNKNOWN, "LyCORIS": UNKNOWN},
    "PEFT, denoiser": _NATIVE,
    "PEFT, denoiser without its prefix": {"ComfyUI": ALL, "Forge": UNKNOWN, "diffusers 0.31": UNKNOWN},
    "other factors in PEFT names": {**UNMEASURED, "ComfyUI": ALL},
    "before PEFT, denoiser": {**UNMEASURED, "ComfyUI": ALL},
    "SimpleTuner": {"ComfyUI": ALL, "Forge": UNKNOWN, "LyCORIS": UNKNOWN},
    "OneTrainer, lora_transformer_": {**UNMEASURED, "ComfyUI": ALL},
}
"""The answers of programs to the names of layers: diffusers was measured, ComfyUI's are the names in its maps, and the
others are facts from their threads."""


def double_layers(config: Config, *, has_modulation: bool) -> Iterator[LinearLayer]:
    """Yield the linear layers of the double blocks; without `has_modulation` they have no modulation of their own."""
    width = width_of(config)
    square, inner = (width, width), _MLP_RATIO * width
    for index in range(int(config["num_layers"])):
        ours, theirs = f"transformer_blocks.{index}", f"double_blocks.{index}"
        for stream, end, names, out in STREAMS:
            if has_modulation:
                yield LinearLayer(f"{ours}.norm1{end}.linear", f"{theirs}.{stream}_mod.lin", (6 * width, width))
            projections = names if stream == "img" else tuple(f"add_{name}_proj" for name in names)
            for piece, name in enumerate(projections):
                yield LinearLayer(f"{ours}.attn.{name}", f"{theirs}.{stream}_attn.qkv", square, piece, (1, 1, 1))
            yield LinearLayer(f"{ours}.attn.{out}", f"{theirs}.{stream}_attn.proj", square)
            yield LinearLayer(f"{ours}.ff{end}.net.0.proj", f"{theirs}.{stream}_mlp.0", (inner, width))
            yield LinearLayer(f"{ours}.ff{end}.net.2", f"{theirs}.{stream}_mlp.2", (width, inner))


def single_layers(config: Config, *, has_modulation: bool) -> Iterator[LinearLayer]:
    """Yield the linear layers of the single blocks; without `has_modulation` they have no modulation of their own."""
    width = width_of(config)
    inner = _MLP_RATIO * width
    shares = (1, 1, 1, _MLP_RATIO)
    for index in range(int(config["num_single_layers"])):
        ours, theirs = f"single_transformer_blocks.{index}", f"single_blocks.{index}"
        if has_modulation:
            yield LinearLayer(f"{ours}.norm.linear", f"{theirs}.modulation.lin", (3 * width, width))
        for piece, name in enumerate(("to_q", "to_k", "to_v")):
            yield LinearLayer(f"{ours}.attn.{name}", f"{theirs}.linear1", (width, width), piece, shares)
        yield LinearLayer(f"{ours}.proj_mlp", f"{theirs}.linear1", (inner, width), 3, shares)
        yield LinearLayer(f"{ours}.proj_out", f"{theirs}.linear2", (width, width + inner))


def end_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield the layers that every such transformer has at its ends: the embeddings of image and text, the output."""
    width, channels = width_of(config), int(config["in_channels"])
    patch = int(config.get("patch_size", 1)) ** 2 * int(config.get("out_channels") or channels)
    yield LinearLayer("x_embedder", "img_in", (width, channels))
    yield LinearLayer("context_embedder", "txt_in", (width, int(config["joint_attention_dim"])))
    yield LinearLayer("proj_out", "final_layer.linear", (patch, width))


def block_slots(config: Config, layers: Iterable[LinearLayer], *, has_bias: bool = True) -> Iterator[Slot]:
    """Yield the slots of linear layers, of the model or of its ends, and of the norms in all blocks."""
    yield from layer_slots(layers, has_bias=has_bias)
    for ours, theirs in _norms(config):
        yield Slot(f"{ours}.weight", f"{theirs}.scale")


def _norms(config: Config) -> Iterator[tuple[str, str]]:
    words = (("q", "query"), ("k", "key"))
    for index in range(int(config["num_layers"])):
        for stream, added in (("img", ""), ("txt", "added_")):
            for short, long in words:
                yield (
                    f"transformer_blocks.{index}.attn.norm_{added}{short}",
                    f"double_blocks.{index}.{stream}_attn.norm.{long}_norm",
                )
    for index in range(int(config["num_single_layers"])):
        for short, long in words:
            yield (
                f"single_transformer_blocks.{index}.attn.norm_{short}",
                f"single_blocks.{index}.norm.{long}_norm",
            )
