"""The files of Qwen-Image 2.1: folders, the names of layers in LoRA files, and files of the transformer alone.

Adapter files name the layers as ComfyUI's checkpoint does, with the gate of an MLP and what it gates in one matrix, or
as diffusers does behind `transformer.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.families.parts.double_stream import double_stream_targets
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer
from modules.families.published import Configs, PublishedModel
from modules.families.qwen_image21.transformer_file import TRANSFORMER_FILE, transformer_layers
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.program_table import (
    ALL,
    COMFY_OF_FLOW,
    DIFFUSERS_NAMES,
    SGM_NAMES,
    UNMEASURED,
    Answer,
    Row,
    none,
)

# What makes a model different from the published one.
_SHAPING = ("num_layers", "num_attention_heads", "attention_head_dim", "context_in_dim", "mlp_ratio", "axes_dims_rope")

# diffusers was measured at toy size (2026-11-29); ComfyUI's are the names in its maps.
_ANSWERS: Row = {
    **UNMEASURED,
    "ComfyUI": ALL,
    "diffusers": ALL,
    **dict.fromkeys(("diffusers 0.31", "sd-scripts"), none("does not have this model")),
}
_MATRIX = none("does not know the matrices of ComfyUI's checkpoint")
_NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(("PEFT, denoiser", "ComfyUI, diffusers names"), _ANSWERS),
    **{name: {**_ANSWERS, "diffusers": _MATRIX} for name in (SGM_NAMES, "ComfyUI, original names")},
    DIFFUSERS_NAMES: {**_ANSWERS, "diffusers": Answer("part", "reads only some of kohya's names of this model")},
    "SimpleTuner": {**_ANSWERS, "diffusers": none("does not know these names")},
}


def _targets(configs: Configs) -> AdapterTargets:
    return AdapterTargets.of(*double_stream_targets("transformer", transformer_layers(configs["transformer"])))


MODEL = PublishedModel(
    name="qwen_image21",
    label="Qwen-Image 2.1",
    family="qwen_image21",
    architecture="qwen-image-2.1",
    kohya_version="qwen_image21",
    implementation="https://github.com/QwenLM/Qwen-Image-2.1",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "qwen_image21",
    repository="Qwen/Qwen-Image-2.1",
    pipelines={"": "QwenImage21Pipeline"},
    index={"processor": ["transformers", "Qwen3VLProcessor"]},
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    versions={"ComfyUI": COMFY_OF_FLOW},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "qwen-image-2.1", "qwen_image_2.1", "qwen_image21")
