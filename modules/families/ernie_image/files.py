"""The files of ERNIE-Image: folders, the names of layers in LoRA files, and files of the transformer alone.

Adapter files name the layers as diffusers does, behind `lora_unet_`, `transformer.` (OneTrainer) or, as ComfyUI has it,
`diffusion_model.`: ComfyUI's checkpoint has the same names, with the prefix `model.diffusion_model.` or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.linear_layers import LinearLayer, diffusers_targets_from, layer_slots
from modules.families.parts.single_file import transformer_file
from modules.families.parts.single_file.slots import Slot, limit_layers, module_slots
from modules.families.published import PublishedModel
from modules.formats.program_table import COMFY_AND_DIFFUSERS, DIFFUSERS_NAMES, WRONG_FACTORS, Row, none

Config = Mapping[str, Any]


def transformer_layers(config: Config) -> Iterator[LinearLayer]:
    """Yield the layers of an `ErnieImageTransformer2DModel` of this config that adapters can change.

    Raises ValueError if the config describes more layers than any model has.
    """
    width, inner, text = (int(config[key]) for key in ("hidden_size", "ffn_hidden_size", "text_in_dim"))
    side, channels = int(config["patch_size"]), int(config["in_channels"])
    yield LinearLayer.same("x_embedder.proj", (width, channels, side, side))
    if text != width:
        yield LinearLayer.same("text_proj", (width, text), bias=False)
    yield LinearLayer.same("time_embedding.linear_1", (width, width))
    yield LinearLayer.same("time_embedding.linear_2", (width, width))
    yield LinearLayer.same("adaLN_modulation.1", (6 * width, width))
    for block in limit_layers(_blocks(config)):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield LinearLayer.same(f"{block}.self_attention.{name}", (width, width), bias=False)
        for name, shape in (("gate_proj", (inner, width)), ("up_proj", (inner, width)), ("linear_fc2", (width, inner))):
            yield LinearLayer.same(f"{block}.mlp.{name}", shape, bias=False)
    yield LinearLayer.same("final_norm.linear", (2 * width, width))
    yield LinearLayer.same("final_linear", (side**2 * int(config["out_channels"]), width))


def _blocks(config: Config) -> Iterator[str]:
    return (f"layers.{index}" for index in range(int(config["num_layers"])))


def _slots(config: Config) -> Iterator[Slot]:
    yield from layer_slots(transformer_layers(config))
    for block in _blocks(config):
        for name in ("adaLN_sa_ln", "adaLN_mlp_ln", "self_attention.norm_q", "self_attention.norm_k"):
            yield from module_slots(f"{block}.{name}", f"{block}.{name}", bias=False)


TRANSFORMER_FILE = transformer_file.transformer_file(
    _slots, first="layers.0.adaLN_sa_ln.", marks=(".layers.0.adaLN_sa_ln.",), diffusers_marks=()
)


# What makes a model different from the published one.
_SHAPING = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "text_in_dim", "rope_axes_dim")

# diffusers was measured at toy size (2026-11-29); ComfyUI's are the names in its maps.
_NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(("PEFT, denoiser", "ComfyUI, diffusers names"), COMFY_AND_DIFFUSERS),
    DIFFUSERS_NAMES: {**COMFY_AND_DIFFUSERS, "diffusers": none("ignores kohya's names of this model")},
    "other factors in PEFT names": {**COMFY_AND_DIFFUSERS, "diffusers": WRONG_FACTORS},
}


MODEL = PublishedModel(
    name="ernie_image",
    label="ERNIE-Image",
    family="ernie_image",
    architecture="ernie-image",
    implementation="https://github.com/baidu/ERNIE-Image",
    adapter_targets=diffusers_targets_from(transformer_layers),
    repository="baidu/ERNIE-Image",
    pipelines={"": "ErnieImagePipeline"},
    single_file=transformer_file.single_denoiser(TRANSFORMER_FILE, *_SHAPING),
    naming_rows=_NAMING_ROWS,
    extra_rows=transformer_file.NO_COMFY_ALPHAS,
)
FILES = transformer_file.files_of_one_model(MODEL, TRANSFORMER_FILE, "ernie-image", "ernie_image", "ernie")
