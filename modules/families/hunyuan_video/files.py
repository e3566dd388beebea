"""The files of HunyuanVideo: folders, the names of layers in LoRA files, and files of the transformer alone.

The published checkpoint has the projections of queries, keys and values in one matrix, in single blocks together with
the first layer of the MLP; ComfyUI's files have the same names. musubi-tuner writes them behind `lora_unet_`,
diffusion-pipe behind `diffusion_model.`; diffusers' own names have the prefix `transformer.`.
Source: diffusers' `convert_hunyuan_video_transformer_to_diffusers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts import hunyuan_layers
from modules.families.parts.double_stream import FIRST_BLOCK
from modules.families.parts.linear_layers import LinearLayer, embedding_layers, layer_slots, targets_from, width_of
from modules.families.parts.single_file import transformer_file
from modules.families.parts.single_file.slots import Slot, module_slots
from modules.families.published import PublishedModel
from modules.formats import program_table as table

Config = Mapping[str, Any]


def linear_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `HunyuanVideoTransformer3DModel` of this config."""
    width = width_of(config)
    embedders = {"timestep": "time_in", **({"guidance": "guidance_in"} if config.get("guidance_embeds") else {})}
    for name, original in embedders.items():
        path = f"time_text_embed.{name}_embedder"
        yield from embedding_layers(path, original, hunyuan_layers.EMBEDDED_CHANNELS, width)
    ends, pooled = ("in_layer", "out_layer"), int(config["pooled_projection_dim"])
    yield from embedding_layers("time_text_embed.text_embedder", "vector_in", pooled, width, ends)
    yield from hunyuan_layers.refiner_layers(config)
    yield from hunyuan_layers.block_layers(config)
    yield from hunyuan_layers.end_layers(config, int(config["patch_size"]) ** 2 * int(config["patch_size_t"]))


def _all_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield the linear layers and the norms with a bias, which files can change, too."""
    yield from linear_layers(config)
    yield from hunyuan_layers.refiner_norms(config)


def _slots(config: Config) -> Iterator[Slot]:
    yield from module_slots("x_embedder.proj", "img_in.proj")
    yield from layer_slots(_all_layers(config))
    for ours, theirs in hunyuan_layers.query_norms(config):
        yield from module_slots(ours, theirs, bias=False)


TRANSFORMER_FILE = transformer_file.transformer_file(
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
_OURS: table.Row = {**table.UNMEASURED, "diffusers 0.31": table.NO_MODEL, "sd-scripts": table.none("does not have it")}
_IN_DIFFUSERS: table.Row = {
    **_OURS,
    "diffusers": table.ALL,
    "ComfyUI": table.none("does not know diffusers' names of this model"),
}
_NOT_KOHYA = table.none("does not know kohya's names of this model")
_NAMING_ROWS: Mapping[str, table.Row] = {
    # It divides both factors of the matrices in the text's refiner, and swaps the rows of both for the last modulation.
    "ComfyUI, original names": {
        **_OURS,
        "ComfyUI": table.ALL,
        "diffusers": {"": table.ALL, "outside": table.refuses("raises an error for some layers outside of the blocks")},
    },
    table.SGM_NAMES: {**_OURS, "ComfyUI": table.UNKNOWN, "diffusers": _NOT_KOHYA},
    "PEFT, denoiser": _IN_DIFFUSERS,
    "SimpleTuner": {**_OURS, "ComfyUI": table.UNKNOWN, "diffusers": table.none("does not know these names")},
}


MODEL = PublishedModel(
    name="hunyuan_video",
    label="HunyuanVideo",
    family="hunyuan_video",
    architecture="hunyuan-video",
    implementation="https://github.com/Tencent-Hunyuan/HunyuanVideo",
    adapter_targets=targets_from(_all_layers),
    repository="hunyuanvideo-community/HunyuanVideo",
    pipelines={"": "HunyuanVideoPipeline"},
    single_file=transformer_file.single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
    extra_rows=transformer_file.NO_COMFY_ALPHAS,
)
FILES = transformer_file.files_of_one_model(MODEL, TRANSFORMER_FILE, "hunyuan-video", "hunyuan_video", "hunyuanvideo")
