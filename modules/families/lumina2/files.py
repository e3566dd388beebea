"""The files of Lumina-Image 2.0: folders, the names of layers in LoRA files, and files of the transformer alone.

ComfyUI and sd-scripts name the layers as the published checkpoint does, with the projections of queries, keys and
values in one matrix; diffusers' names have the prefix `transformer.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from modules.families.lumina2.transformer_file import TRANSFORMER_FILE, transformer_layers
from modules.families.parts.double_stream import double_stream_targets
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer
from modules.families.published import Configs, PublishedModel
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.program_table import ALL, COMFY_OF_FLOW, SGM_NAMES, UNMEASURED, Row, none, refuses

# What makes a model different from the published one; `axes_lens` are the lengths of tables alone.
_SHAPING = (
    *("in_channels", "hidden_size", "num_layers", "num_refiner_layers", "num_attention_heads", "num_kv_heads"),
    *("multiple_of", "ffn_dim_multiplier", "cap_feat_dim", "axes_dim_rope"),
)
_ANSWERS: Row = {**UNMEASURED, "diffusers 0.31": none("does not have this model")}
# diffusers was measured at toy size (2026-11-29); ComfyUI's are the names in its maps, sd-scripts' its own files.
_NAMING_ROWS: Mapping[str, Row] = {
    SGM_NAMES: {
        **_ANSWERS,
        "ComfyUI": ALL,
        "sd-scripts": ALL,
        "diffusers": none("its pipeline of Lumina 2 does not read kohya's names"),
    },
    "ComfyUI, original names": {
        **_ANSWERS,
        "ComfyUI": ALL,
        "diffusers": refuses("raises an error where a LoRA leaves out a layer of any block"),
    },
    "PEFT, denoiser": {**_ANSWERS, "diffusers": ALL, "ComfyUI": none("does not map diffusers' names of this model")},
}


def _targets(configs: Configs) -> AdapterTargets:
    return AdapterTargets.of(*double_stream_targets("transformer", transformer_layers(configs["transformer"])))


MODEL = PublishedModel(
    name="lumina2",
    label="Lumina 2",
    family="lumina2",
    architecture="lumina-2",
    kohya_version="lumina",
    implementation="https://github.com/Alpha-VLLM/Lumina-Image-2.0",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "lumina2",
    repository="Alpha-VLLM/Lumina-Image-2.0",
    pipelines={"": "Lumina2Pipeline"},
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    versions={"ComfyUI": COMFY_OF_FLOW},
)
_OLDER_PIPELINE = "Lumina2Text2ImgPipeline"  # in the published folder
_FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "lumina")
FILES = replace(_FILES, pipelines={**_FILES.pipelines, _OLDER_PIPELINE: ""})
