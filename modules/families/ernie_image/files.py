"""The files of ERNIE-Image: folders, the names of layers in LoRA files, and files of the transformer alone.

Adapter files name the layers as diffusers does, behind `lora_unet_`, `transformer.` (OneTrainer) or, as ComfyUI has it,
`diffusion_model.`: ComfyUI's checkpoint has the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.families.ernie_image.transformer_file import TRANSFORMER_FILE, transformer_layers
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer
from modules.families.published import Configs, PublishedModel
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from modules.formats.program_table import (
    ALL,
    COMFY_OF_FLOW,
    DIFFUSERS_NAMES,
    UNMEASURED,
    Row,
    none,
    refuses,
)

# What makes a model different from the published one.
_SHAPING = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "text_in_dim", "rope_axes_dim")

# diffusers was measured at toy size (2026-11-29); ComfyUI's are the names in its maps.
_ANSWERS: Row = {
    **UNMEASURED,
    "ComfyUI": ALL,
    "diffusers": ALL,
    **dict.fromkeys(("diffusers 0.31", "sd-scripts"), none("does not have this model")),
}
_NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(("PEFT, denoiser", "ComfyUI, diffusers names"), _ANSWERS),
    DIFFUSERS_NAMES: {**_ANSWERS, "diffusers": none("ignores kohya's names of this model")},
    "other factors in PEFT names": {**_ANSWERS, "diffusers": refuses("raises an error for the factors' names")},
}


def _targets(configs: Configs) -> AdapterTargets:
    return AdapterTargets.of(
        AdapterTarget("transformer", layer.path, layer.shape, {"diffusers": layer.path}, "lora_unet_", "diffusers")
        for layer in transformer_layers(configs["transformer"])
    )


MODEL = PublishedModel(
    name="ernie_image",
    label="ERNIE-Image",
    family="ernie_image",
    architecture="ernie-image",
    kohya_version="ernie_image",
    implementation="https://github.com/baidu/ERNIE-Image",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "ernie_image",
    repository="baidu/ERNIE-Image",
    pipelines={"": "ErnieImagePipeline"},
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    extra_rows={"alpha in ComfyUI's names": {"diffusers": refuses("raises an error for alphas in these names")}},
    versions={"ComfyUI": COMFY_OF_FLOW},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "ernie-image", "ernie_image", "ernie")
