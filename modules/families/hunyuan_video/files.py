"""The files of HunyuanVideo: folders, the names of layers in LoRA files, and files of the transformer alone.

The published checkpoint has the projections of queries, keys and values in one matrix, in single blocks together with
the first layer of the MLP; ComfyUI's files have the same names. musubi-tuner writes them behind `lora_unet_`,
diffusion-pipe behind `diffusion_model.`; diffusers' own names have the prefix `transformer.`.
Source: diffusers' `convert_hunyuan_video_transformer_to_diffusers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.families.parts.double_stream import (
    FIRST_BLOCK,
    LinearLayer,
    double_stream_targets,
    layer_slots,
    width_of,
)
from modules.families.parts.single_file.slots import Slot, module_slots
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer, transformer_file
from modules.families.published import Configs, PublishedModel
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.program_table import ALL, COMFY_OF_FLOW, SGM_NAMES, UNKNOWN, UNMEASURED, Row, none, refuses

Config = Mapping[str, Any]
_EMBEDDED = 256  # the channels of an embedded timestep or guidance scale, in diffusers' class
_EQUAL = (1, 1, 1)
_STREAMS = (
    ("img", "", ("to_q", "to_k", "to_v"), "to_out.0"),
    ("txt", "_context", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out"),
)


def linear_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `HunyuanVideoTransformer3DModel` of this config."""
    width = width_of(config)
    patch = int(config["patch_size"]) ** 2 * int(config["patch_size_t"])
    embedders = {"timestep": "time_in", **({"guidance": "guidance_in"} if config.get("guidance_embeds") else {})}
    for name, original in embedders.items():
        yield from _mlp(f"time_text_embed.{name}_embedder", f"{original}.mlp", ("0", "2"), _EMBEDDED, width)
    ends, pooled = ("in_layer", "out_layer"), int(config["pooled_projection_dim"])
    yield from _mlp("time_text_embed.text_embedder", "vector_in", ends, pooled, width)
    yield from _refiner(config)
    for index in range(int(config["num_layers"])):
        yield from _double_block(config, index)
    for index in range(int(config["num_single_layers"])):
        yield from _single_block(config, index)
    yield LinearLayer("norm_out.linear", "final_layer.adaLN_modulation.1", (2 * width, width), swapped=True)
    yield LinearLayer("proj_out", "final_layer.linear", (patch * int(config["out_channels"]), width))


def _all_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield the linear layers and the norms with a bias, which files can change, too."""
    yield from linear_layers(config)
    for ours, theirs in _refiner_blocks(config):
        for name in ("norm1", "norm2"):
            yield LinearLayer(f"{ours}.{name}", f"{theirs}.{name}", (width_of(config),))


def _mlp(path: str, original: str, ends: tuple[str, str], columns: int, width: int) -> Iterator[LinearLayer]:
    yield LinearLayer(f"{path}.linear_1", f"{original}.{ends[0]}", (width, columns))
    yield LinearLayer(f"{path}.linear_2", f"{original}.{ends[1]}", (width, width))


def _refiner(config: Config) -> Iterator[LinearLayer]:
    """Yield the layers that refine the text's states before the blocks."""
    width, columns = width_of(config), int(config["text_embed_dim"])
    embed = "context_embedder.time_text_embed"
    yield from _mlp(f"{embed}.timestep_embedder", "txt_in.t_embedder.mlp", ("0", "2"), _EMBEDDED, width)
    yield from _mlp(f"{embed}.text_embedder", "txt_in.c_embedder", ("linear_1", "linear_2"), columns, width)
    yield LinearLayer("context_embedder.proj_in", "txt_in.input_embedder", (width, columns))
    for ours, theirs in _refiner_blocks(config):
        for piece, name in enumerate(("to_q", "to_k", "to_v")):
            yield LinearLayer(f"{ours}.attn.{name}", f"{theirs}.self_attn_qkv", (width, width), piece, _EQUAL)
        yield LinearLayer(f"{ours}.attn.to_out.0", f"{theirs}.self_attn_proj", (width, width))
        yield LinearLayer(f"{ours}.ff.net.0.proj", f"{theirs}.mlp.fc1", (4 * width, width))
        yield LinearLayer(f"{ours}.ff.net.2", f"{theirs}.mlp.fc2", (width, 4 * width))
        yield LinearLayer(f"{ours}.norm_out.linear", f"{theirs}.adaLN_modulation.1", (2 * width, width))


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


def _norms(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the norms of queries and keys."""
    for index in range(int(config["num_layers"])):
        for stream, added in (("img", ""), ("txt", "added_")):
            for name in ("q", "k"):
                ours = f"transformer_blocks.{index}.attn.norm_{added}{name}"
                yield ours, f"double_blocks.{index}.{stream}_attn_{name}_norm"
    for index in range(int(config["num_single_layers"])):
        for name in ("q", "k"):
            yield f"single_transformer_blocks.{index}.attn.norm_{name}", f"single_blocks.{index}.{name}_norm"


def _slots(config: Config) -> Iterator[Slot]:
    yield from module_slots("x_embedder.proj", "img_in.proj")
    yield from layer_slots(_all_layers(config))
    for ours, theirs in _norms(config):
        yield from module_slots(ours, theirs, bias=False)


TRANSFORMER_FILE = transformer_file(
    _slots,
    first=FIRST_BLOCK,
    marks=(".double_blocks.0.img_attn_qkv.", ".context_embedder.token_refiner."),
    diffusers_marks=("single_transformer_blocks.",),
    # HunyuanImage 2.1 and HunyuanVideo 1.5 have the refiner, too, but other inputs besides it, and divided matrices.
    others=(
        *(".double_blocks.0.img_attn_q.", ".byt5_in.", ".cond_type_embedding."),
        *(".context_embedder_2.", ".time_guidance_embed.", ".cond_type_embed."),
    ),
)


# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_single_layers", "num_refiner_layers", "num_attention_heads", "attention_head_dim"),
    *("text_embed_dim", "pooled_projection_dim", "rope_axes_dim"),
)

# diffusers was measured with layers of the published size (2026-11-29), ComfyUI's are the names in its maps.
_OURS: Row = {**UNMEASURED, "diffusers 0.31": none("does not have this model"), "sd-scripts": none("does not have it")}
_IN_DIFFUSERS: Row = {**_OURS, "diffusers": ALL, "ComfyUI": none("does not know diffusers' names of this model")}
_NOT_KOHYA = none("does not know kohya's names of this model")
_NAMING_ROWS: Mapping[str, Row] = {
    # It divides both factors of the matrices in the text's refiner, and swaps the rows of both for the last modulation.
    "ComfyUI, original names": {
        **_OURS,
        "ComfyUI": ALL,
        "diffusers": {"": ALL, "outside": refuses("raises an error for some layers outside of the blocks")},
    },
    SGM_NAMES: {**_OURS, "ComfyUI": UNKNOWN, "diffusers": _NOT_KOHYA},
    "PEFT, denoiser": _IN_DIFFUSERS,
    "SimpleTuner": {**_OURS, "ComfyUI": UNKNOWN, "diffusers": none("does not know these names")},
}


def _targets(configs: Configs) -> AdapterTargets:
    return AdapterTargets.of(*double_stream_targets("transformer", _all_layers(configs["transformer"])))


MODEL = PublishedModel(
    name="hunyuan_video",
    label="HunyuanVideo",
    family="hunyuan_video",
    architecture="hunyuan-video",
    kohya_version="hunyuan_video",
    implementation="https://github.com/Tencent-Hunyuan/HunyuanVideo",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "hunyuan_video",
    repository="hunyuanvideo-community/HunyuanVideo",
    pipelines={"": "HunyuanVideoPipeline"},
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    extra_rows={"alpha in ComfyUI's names": {"diffusers": refuses("raises an error for alphas in these names")}},
    versions={"ComfyUI": COMFY_OF_FLOW},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "hunyuan-video", "hunyuan_video", "hunyuanvideo")
