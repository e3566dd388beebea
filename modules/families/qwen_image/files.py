"""The files of Qwen-Image: folders, the names of layers in LoRA files, and files of the transformer alone.

Adapter files name the layers as diffusers does, behind `lora_unet_` (musubi-tuner), `transformer.`, `lycoris_`
(SimpleTuner) or, as ComfyUI has it, `diffusion_model.`: the published checkpoint has the same names, ComfyUI's with the
prefix `model.diffusion_model.` or none. The mark of Qwen-Image-Edit-2511 in such files is a tensor without a use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, diffusers_targets_from, layer_slots, width_of
from modules.families.parts.single_file.record import PartLayout, Shapes
from modules.families.parts.single_file.slots import Slot, limit_layers, module_slots
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_denoiser, transformer_file
from modules.families.published import Configs, PublishedModel
from modules.formats import program_table as table

_EMBEDDED_TIME = 256  # the channels of an embedded timestep, in diffusers' class
_ATTENTION = (
    *("to_q", "to_k", "to_v", "to_out.0"),
    *("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
)
_NORMS = ("norm_q", "norm_k", "norm_added_q", "norm_added_k")


def transformer_layers(config: Mapping[str, Any]) -> Iterator[LinearLayer]:
    """Yield all linear layers of a `QwenImageTransformer2DModel` of this config.

    Raises ValueError if the config describes more layers than any model has.
    """
    width = width_of(config)
    patch = int(config["patch_size"]) ** 2 * int(config.get("out_channels") or config["in_channels"])
    yield LinearLayer.same("img_in", (width, int(config["in_channels"])))
    yield LinearLayer.same("txt_in", (width, int(config["joint_attention_dim"])))
    yield LinearLayer.same("time_text_embed.timestep_embedder.linear_1", (width, _EMBEDDED_TIME))
    yield LinearLayer.same("time_text_embed.timestep_embedder.linear_2", (width, width))
    for block in limit_layers(_blocks(config)):
        for name in _ATTENTION:
            yield LinearLayer.same(f"{block}.attn.{name}", (width, width))
        for stream in ("img", "txt"):
            yield LinearLayer.same(f"{block}.{stream}_mod.1", (6 * width, width))
            yield LinearLayer.same(f"{block}.{stream}_mlp.net.0.proj", (4 * width, width))
            yield LinearLayer.same(f"{block}.{stream}_mlp.net.2", (width, 4 * width))
    yield LinearLayer.same("norm_out.linear", (2 * width, width))
    yield LinearLayer.same("proj_out", (patch, width))


def _blocks(config: Mapping[str, Any]) -> Iterator[str]:
    return (f"transformer_blocks.{index}" for index in range(int(config["num_layers"])))


def _slots(config: Mapping[str, Any]) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config))
    norms = (f"{block}.attn.{name}" for block in _blocks(config) for name in _NORMS)
    for path in ("txt_norm", *norms):
        yield from module_slots(path, path, bias=False)


def fill_positions(transformer: Any) -> None:
    """Make the rotary embeddings, which are tensors but no buffers of diffusers' class."""
    made = transformer.pos_embed
    transformer.pos_embed = type(made)(made.theta, made.axes_dim, made.scale_rope)


ZERO_TIME_MARK = "__index_timestep_zero__"
"""The tensor by which ComfyUI's files of Qwen-Image-Edit-2511 show that references are modulated as at the time 0."""
_ZERO_TIME: Mapping[str, Any] = {"zero_cond_t": True}
_PLAIN_FILE = transformer_file(
    _slots, first="transformer_blocks.0.img_mod.1.", marks=(".transformer_blocks.0.img_mod.1.",), diffusers_marks=()
)


def _layout(config: Mapping[str, Any]) -> PartLayout:
    plain = _PLAIN_FILE.layout(config)
    if not config.get("zero_cond_t"):
        return plain
    mark = f"{plain.prefix}{ZERO_TIME_MARK}"
    return replace(plain, is_unused=mark.__eq__, unused_tensors="modules.families.qwen_image.model:zero_time_mark")


TRANSFORMER_FILE = replace(_PLAIN_FILE, layout=_layout, config_marks={ZERO_TIME_MARK: _ZERO_TIME})


def _configs_of(configs: Configs, shapes: Shapes) -> Configs:
    return {**configs, "transformer": TRANSFORMER_FILE.with_marks(shapes, configs["transformer"])}


# What makes a model different from the published one.
_SHAPING = ("num_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim", "axes_dims_rope")

# diffusers was measured at toy size (2026-11-28); ComfyUI's are the names in its maps.
_NAMING_ROWS: Mapping[str, table.Row] = {
    **dict.fromkeys((table.DIFFUSERS_NAMES, "PEFT, denoiser", "ComfyUI, diffusers names"), table.COMFY_AND_DIFFUSERS),
    "SimpleTuner": {**table.COMFY_AND_DIFFUSERS, "diffusers": table.none("does not know these names")},
}


MODEL = PublishedModel(
    name="qwen_image",
    label="Qwen-Image",
    family="qwen_image",
    architecture="qwen-image",
    implementation="https://github.com/QwenLM/Qwen-Image",
    adapter_targets=diffusers_targets_from(transformer_layers),
    repository="Qwen/Qwen-Image",
    variant_architectures={"edit": "qwen-image-edit", "edit_one": "qwen-image-edit"},
    pipelines={"": "QwenImagePipeline", "edit": "QwenImageEditPlusPipeline", "edit_one": "QwenImageEditPipeline"},
    copied=("processor",),
    single_file=replace(single_denoiser(TRANSFORMER_FILE, *_SHAPING), configs_of=_configs_of),
    naming_rows=_NAMING_ROWS,
)
FILES = replace(
    files_of_one_model(MODEL, TRANSFORMER_FILE, "qwen-image", "qwen_image", "qwen image"),
    # In the names of files and repositories; the first Qwen-Image-Edit has neither a year nor "plus" in its name.
    variant_words={
        **dict.fromkeys(("edit-2509", "edit-2511", "edit_2509", "edit_2511", "edit-plus", "edit_plus"), "edit"),
        **dict.fromkeys(("image-edit", "image_edit"), "edit_one"),
    },
    named_configs={word: {"transformer": _ZERO_TIME} for word in ("edit-2511", "edit_2511")},
)
