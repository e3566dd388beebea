"""The files of FLUX.2's models: the layers that adapter files can change, what programs make of their names, and files
of the transformer and of the VAE alone.

The published checkpoints have the queries, keys and values of double blocks in one matrix, and the two halves of the
last modulation in the other order (diffusers' `convert_flux2_transformer_checkpoint_to_diffusers`); kohya's and
musubi's names are theirs, ComfyUI's, too, behind `diffusion_model.`; diffusers' have the prefix `transformer.`. The VAE
has the tensors of an `AutoencoderKL`, and the statistics of the latents' patches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.double_stream import FIRST_BLOCK, STREAMS, block_slots, end_layers
from modules.families.parts.double_stream import NAMING_ROWS as _OF_DOUBLE_STREAMS
from modules.families.parts.linear_layers import LinearLayer, embedding_layers, targets_from, width_of
from modules.families.parts.single_file import autoencoder
from modules.families.parts.single_file.slots import Slot
from modules.families.parts.single_file.transformer_file import single_denoiser, transformer_file
from modules.formats.program_table import ALL, SGM_NAMES, UNMEASURED, Answer, Row, none

_MODULATIONS = {"double_stream_modulation_img": 6, "double_stream_modulation_txt": 6, "single_stream_modulation": 3}


def transformer_layers(config: Mapping[str, Any]) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `Flux2Transformer2DModel` of this config."""
    width, embedded = width_of(config), int(config.get("timestep_guidance_channels", 256))
    for name in ("timestep", *(("guidance",) if config.get("guidance_embeds", True) else ())):
        path, original = f"time_guidance_embed.{name}_embedder", f"{name.replace('timestep', 'time')}_in"
        yield from embedding_layers(path, original, embedded, width, ("in_layer", "out_layer"))
    for name, count in _MODULATIONS.items():
        yield LinearLayer(f"{name}.linear", f"{name}.lin", (count * width, width))
    yield from end_layers(config)
    yield LinearLayer("norm_out.linear", "final_layer.adaLN_modulation.1", (2 * width, width), swapped=True)
    inner = int(width * float(config.get("mlp_ratio", 3.0)))
    for index in range(int(config["num_layers"])):
        yield from _double_layers(f"transformer_blocks.{index}", f"double_blocks.{index}", width, inner)
    for index in range(int(config["num_single_layers"])):
        ours, theirs = f"single_transformer_blocks.{index}.attn", f"single_blocks.{index}"
        yield LinearLayer(f"{ours}.to_qkv_mlp_proj", f"{theirs}.linear1", (3 * width + 2 * inner, width))
        yield LinearLayer(f"{ours}.to_out", f"{theirs}.linear2", (width, width + inner))


def _double_layers(ours: str, theirs: str, width: int, inner: int) -> Iterator[LinearLayer]:
    for stream, end, names, out in STREAMS:
        projections = names if stream == "img" else tuple(f"add_{name}_proj" for name in names)
        for piece, name in enumerate(projections):
            yield LinearLayer(f"{ours}.attn.{name}", f"{theirs}.{stream}_attn.qkv", (width, width), piece, (1, 1, 1))
        yield LinearLayer(f"{ours}.attn.{out}", f"{theirs}.{stream}_attn.proj", (width, width))
        yield LinearLayer(f"{ours}.ff{end}.linear_in", f"{theirs}.{stream}_mlp.0", (2 * inner, width))
        yield LinearLayer(f"{ours}.ff{end}.linear_out", f"{theirs}.{stream}_mlp.2", (width, inner))


TRANSFORMER_FILE = transformer_file(
    lambda config: block_slots(config, transformer_layers(config), has_bias=False),
    first=FIRST_BLOCK,
    marks=(".single_stream_modulation.",),
    diffusers_marks=("single_transformer_blocks.",),
)


# What makes a model different from the published one.
SINGLE_FILE = single_denoiser(
    TRANSFORMER_FILE,
    *("num_layers", "num_single_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim"),
    *("axes_dims_rope", "mlp_ratio", "guidance_embeds"),
)
# diffusers was measured at toy size (2026-11-28); ComfyUI's are the names in its maps.
_ROW: Row = {**UNMEASURED, "ComfyUI": ALL, "diffusers": ALL}
_NOT_OUTSIDE = none("does not map kohya's names outside the blocks")
NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(_OF_DOUBLE_STREAMS, UNMEASURED),
    SGM_NAMES: {**_ROW, "diffusers": {"": ALL, "outside": _NOT_OUTSIDE}},
    "ComfyUI, original names": {**_ROW, "diffusers": Answer("unknown", "raises an error if the file has alphas")},
    "PEFT, denoiser": _ROW,
}


transformer_targets = targets_from(transformer_layers)


_STATISTICS = ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked")


def vae_slots(config: Mapping[str, Any]) -> tuple[Slot, ...]:
    """Return the slots of an `AutoencoderKLFlux2` of this config in the original layout."""
    return (*autoencoder.vae_slots(config), *(Slot(name, name) for name in _STATISTICS))
