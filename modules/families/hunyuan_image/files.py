"""The files of HunyuanImage 2.1: folders, the names of layers in LoRA files, and files of the transformer alone.

The published checkpoint has the projections of queries, keys and values in one matrix, in single blocks together with
the first layer of the MLP. sd-scripts names layers as the checkpoint does, behind `lora_unet_`; ComfyUI knows them by
names of its own, `diffusion_model.double_blocks.0.img_mlp.0`, which diffusion-pipe writes, too. diffusers' own names
have the prefix `transformer.`.
Source: diffusers' scripts/convert_hunyuan_image_to_diffusers.py; ComfyUI's names are in its model code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts import hunyuan_layers
from modules.families.parts.double_stream import FIRST_BLOCK
from modules.families.parts.linear_layers import LinearLayer, embedding_layers, layer_slots, targets_from, width_of
from modules.families.parts.single_file.slots import Slot, module_slots
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_denoiser, transformer_file
from modules.families.published import PublishedModel
from modules.formats.program_table import ALL, NO_MODEL, SGM_NAMES, UNKNOWN, UNMEASURED, Row, none

Config = Mapping[str, Any]
_GLYPH_WIDTH = 2048  # between the layers for ByT5's states, in diffusers' class
_IN_COMFY = (
    *(("_attn_qkv", "_attn.qkv"), ("_attn_proj", "_attn.proj"), ("_mod.linear", "_mod.lin")),
    *(("mlp.fc1", "mlp.0"), ("mlp.fc2", "mlp.2"), ("modulation.linear", "modulation.lin")),
    *(("c_embedder.linear_1", "c_embedder.in_layer"), ("c_embedder.linear_2", "c_embedder.out_layer")),
    *(("t_embedder.mlp.0", "t_embedder.in_layer"), ("t_embedder.mlp.2", "t_embedder.out_layer")),
    *(("time_in.mlp.0", "time_in.in_layer"), ("time_in.mlp.2", "time_in.out_layer")),
)


def path_in_comfy(path: str) -> str:
    """Return ComfyUI's path of a layer from the published one."""
    for theirs, ours in _IN_COMFY:
        if path.endswith(theirs):
            return f"{path.removesuffix(theirs)}{ours}"
    return path


def linear_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `HunyuanImageTransformer2DModel` of this config, and the layer of its latents."""
    width, patch = width_of(config), config["patch_size"]
    yield LinearLayer("x_embedder.proj", "img_in.proj", (width, int(config["in_channels"]), *patch))
    yield from embedding_layers(
        "time_guidance_embed.timestep_embedder", "time_in", hunyuan_layers.EMBEDDED_CHANNELS, width
    )
    columns = (int(config["text_embed_2_dim"]), _GLYPH_WIDTH, _GLYPH_WIDTH)
    for number, (before, after) in enumerate(zip(columns, (*columns[1:], width), strict=True), start=1):
        yield LinearLayer(f"context_embedder_2.linear_{number}", f"byt5_in.fc{number}", (after, before))
    yield from hunyuan_layers.refiner_layers(config)
    yield from hunyuan_layers.block_layers(config)
    yield from hunyuan_layers.end_layers(config, int(patch[0]) * int(patch[1]))


def _all_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield the linear layers and the norms with a bias, which files can change, too."""
    yield from linear_layers(config)
    yield from hunyuan_layers.refiner_norms(config)
    yield LinearLayer("context_embedder_2.norm", "byt5_in.layernorm", (int(config["text_embed_2_dim"]),))


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(_all_layers(config))
    for ours, theirs in hunyuan_layers.query_norms(config):
        yield from module_slots(ours, theirs, bias=False)


TRANSFORMER_FILE = transformer_file(
    _slots,
    first=FIRST_BLOCK,
    marks=(".byt5_in.", ".context_embedder_2."),
    diffusers_marks=("single_transformer_blocks.",),
    # HunyuanVideo 1.5 reads quoted text, too; the distilled model has a second embedding of the time.
    others=(".cond_type_embedding.", ".cond_type_embed.", ".time_r_in.", ".timestep_embedder_r."),
)


# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_single_layers", "num_refiner_layers", "num_attention_heads", "attention_head_dim"),
    *("text_embed_dim", "text_embed_2_dim", "rope_axes_dim"),
)

# ComfyUI's answers are the names in its model; diffusers' pipeline has no loader in 0.42.1.
_OTHERS: Row = {
    **UNMEASURED,
    "diffusers": none("its pipeline of HunyuanImage loads no LoRA; PEFT loads one into its transformer"),
    "diffusers 0.31": NO_MODEL,
}
_NOT_IN_COMFY: Row = {**_OTHERS, "ComfyUI": none("does not map these names for HunyuanImage")}
_NAMING_ROWS: Mapping[str, Row] = {
    "ComfyUI, original names": {**_OTHERS, "ComfyUI": ALL},
    "kohya, ComfyUI's names": {**_OTHERS, "ComfyUI": ALL},
    SGM_NAMES: {
        **_OTHERS,
        "ComfyUI": {"": ALL, "renamed": none("knows the MLPs and modulations by other names in this form")},
        "sd-scripts": {"": ALL, "outside": UNKNOWN},
    },
    **dict.fromkeys(("PEFT, denoiser", "SimpleTuner"), _NOT_IN_COMFY),
}


MODEL = PublishedModel(
    name="hunyuan_image",
    label="HunyuanImage 2.1",
    family="hunyuan_image",
    architecture="hunyuan-image-2.1",
    kohya_version="hunyuan-image-2.1",
    implementation="https://github.com/Tencent-Hunyuan/HunyuanImage-2.1",
    adapter_targets=targets_from(_all_layers, in_comfy=path_in_comfy),
    repository="hunyuanvideo-community/HunyuanImage-2.1-Diffusers",
    pipelines={"": "HunyuanImagePipeline"},
    copied=("guider", "ocr_guider"),
    single_file=single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "hunyuan-image", "hunyuan_image", "hunyuanimage")
