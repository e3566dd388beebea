"""The files of Qwen-Image: folders, the names of layers in LoRA files, and files of the transformer alone.

Adapter files name the layers as diffusers does, behind `lora_unet_` (musubi-tuner), `transformer.`, `lycoris_`
(SimpleTuner) or, as ComfyUI has it, `diffusion_model.`: the published checkpoint has the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer
from modules.families.published import Configs, PublishedModel
from modules.families.qwen_image.transformer_file import TRANSFORMER_FILE, linear_layers
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from modules.formats.program_table import (
    ALL,
    COMFY_OF_FLOW,
    DIFFUSERS_NAMES,
    UNMEASURED,
    Row,
    none,
)

# What makes a model different from the published one.
_SHAPING = ("num_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim", "axes_dims_rope")

# diffusers was measured at toy size (2026-11-28); ComfyUI's are the names in its maps.
_ANSWERS: Row = {
    **UNMEASURED,
    "ComfyUI": ALL,
    "diffusers": ALL,
    **dict.fromkeys(("diffusers 0.31", "sd-scripts"), none("does not have this model")),
}
_NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys((DIFFUSERS_NAMES, "PEFT, denoiser", "ComfyUI, diffusers names"), _ANSWERS),
    "SimpleTuner": {**_ANSWERS, "diffusers": none("does not know these names")},
}


def _targets(configs: Configs) -> AdapterTargets:
    return AdapterTargets.of(
        AdapterTarget("transformer", path, shape, {"diffusers": path}, "lora_unet_", "diffusers")
        for path, shape in linear_layers(configs["transformer"])
    )


MODEL = PublishedModel(
    name="qwen_image",
    label="Qwen-Image",
    family="qwen_image",
    architecture="qwen-image",
    kohya_version="qwen_image",
    implementation="https://github.com/QwenLM/Qwen-Image",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "qwen_image",
    repository="Qwen/Qwen-Image",
    pipelines={"": "QwenImagePipeline"},
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    versions={"ComfyUI": COMFY_OF_FLOW},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "qwen-image", "qwen_image", "qwen image")
