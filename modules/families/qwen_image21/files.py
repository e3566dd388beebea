"""The files of Qwen-Image 2.1: folders, the names of layers in LoRA files, and files of the transformer alone.

Adapter files name the layers as ComfyUI's checkpoint does, with the gate of an MLP and what it gates in one matrix, or
as diffusers does behind `transformer.`. That checkpoint has the prefix `model.diffusion_model.` or none (diffusers'
`convert_qwen_image21_transformer_checkpoint_to_diffusers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, layer_slots, targets_from, width_of
from modules.families.parts.single_file.slots import Slot, module_slots
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_denoiser, transformer_file
from modules.families.published import PublishedModel
from modules.formats import program_table as table

Config = Mapping[str, Any]
_EMBEDDED_TIME = 256  # the channels of an embedded timestep, in diffusers' class
_GATE_AND_UP = ("gate_layer", "proj")


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `QwenImage21Transformer2DModel` of this config."""
    width, inner = width_of(config), int(config["mlp_ratio"]) * width_of(config)
    square, channels, patch = (width, width), int(config["in_channels"]), int(config["patch_size"]) ** 2
    text, time = "txt_in", "time_text_embed.timestep_embedder"
    yield LinearLayer.same("img_in", (width, patch * channels))
    yield LinearLayer.same(f"{text}.in_layer", (width, int(config["context_in_dim"])))
    yield LinearLayer.same(f"{text}.out_layer", square)
    yield LinearLayer.same(f"{time}.linear_1", (width, _EMBEDDED_TIME))
    yield LinearLayer.same(f"{time}.linear_2", square)
    yield LinearLayer.same("modulation.1", (4 * width, width))
    for block in _blocks(config):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield LinearLayer.same(f"{block}.attn.{name}", square)
        for piece, name in enumerate(_GATE_AND_UP):
            yield LinearLayer(f"{block}.img_mlp.{name}", f"{block}.img_mlp.gate_up", (inner, width), piece, (1, 1))
        yield LinearLayer.same(f"{block}.img_mlp.out", (width, inner))
    yield LinearLayer.same("norm_out.linear", square)
    yield LinearLayer.same("proj_out", (patch * int(config.get("out_channels") or channels), width))


def _blocks(config: Config) -> Iterator[str]:
    return (f"transformer_blocks.{index}" for index in range(int(config["num_layers"])))


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config), has_bias=False)
    yield from module_slots("txt_in.text_norm", "txt_in.text_norm", bias=False)
    for block in _blocks(config):
        for name in ("norm_q", "norm_k"):
            yield from module_slots(f"{block}.attn.{name}", f"{block}.attn.{name}", bias=False)


TRANSFORMER_FILE = transformer_file(
    _slots,
    first="txt_in.text_norm.",
    marks=(".txt_in.text_norm.",),
    diffusers_marks=("transformer_blocks.0.img_mlp.gate_layer.",),
)


# What makes a model different from the published one.
_SHAPING = ("num_layers", "num_attention_heads", "attention_head_dim", "context_in_dim", "mlp_ratio", "axes_dims_rope")

# diffusers was measured at toy size (2026-11-29); ComfyUI's are the names in its maps.
_MATRIX = table.none("does not know the matrices of ComfyUI's checkpoint")
_NAMING_ROWS: Mapping[str, table.Row] = {
    **dict.fromkeys(("PEFT, denoiser", "ComfyUI, diffusers names"), table.COMFY_AND_DIFFUSERS),
    **{
        name: {**table.COMFY_AND_DIFFUSERS, "diffusers": _MATRIX}
        for name in (table.SGM_NAMES, "ComfyUI, original names")
    },
    table.DIFFUSERS_NAMES: {
        **table.COMFY_AND_DIFFUSERS,
        "diffusers": table.Answer("part", "reads only some of kohya's names of this model"),
    },
    "SimpleTuner": {**table.COMFY_AND_DIFFUSERS, "diffusers": table.none("does not know these names")},
}


MODEL = PublishedModel(
    name="qwen_image21",
    label="Qwen-Image 2.1",
    family="qwen_image21",
    architecture="qwen-image-2.1",
    implementation="https://github.com/QwenLM/Qwen-Image-2.1",
    adapter_targets=targets_from(transformer_layers),
    repository="Qwen/Qwen-Image-2.1",
    pipelines={"": "QwenImage21Pipeline"},
    index={"processor": ["transformers", "Qwen3VLProcessor"]},
    single_file=single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "qwen-image-2.1", "qwen_image_2.1", "qwen_image21")
