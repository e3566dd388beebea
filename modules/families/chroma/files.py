"""The files of Chroma1: folders, the names of layers in LoRA files, and files of the transformer alone.

kohya's trainers name the transformer's layers as the published checkpoints do, with the projections of queries, keys
and values in one matrix; diffusers' names have the prefix `transformer.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.families.chroma.transformer_file import TRANSFORMER_FILE, transformer_layers
from modules.families.parts.double_stream import NAMING_ROWS, double_stream_targets
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer
from modules.families.parts.t5_layers import t5_targets
from modules.families.published import Configs, PublishedModel
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.program_table import ALL, COMFY_OF_FLOW, UNMEASURED, Row, none, refuses

# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_single_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim"),
    *("approximator_num_channels", "approximator_hidden_dim", "approximator_layers", "axes_dims_rope"),
)
# diffusers was measured on 2026-11-27: its pipeline of Chroma has FLUX.1's loader, whose text encoder is a CLIP.
_OF_T5: Row = {**UNMEASURED, "diffusers": refuses("raises an error for changes of T5: it expects a CLIP there")}
_TEXT_ROWS: Mapping[str, Row] = {
    "kohya, text": {**_OF_T5, "ComfyUI": ALL},
    "PEFT, text": {**_OF_T5, "ComfyUI": none("does not map T5 in this form")},
}


def _targets(configs: Configs) -> AdapterTargets:
    layers, matrices = double_stream_targets("transformer", transformer_layers(configs["transformer"]))
    return AdapterTargets.of((*layers, *t5_targets("text_encoder", configs["text_encoder"], "lora_te1_")), matrices)


MODEL = PublishedModel(
    name="chroma1",
    label="Chroma1",
    family="chroma",
    architecture="chroma",
    kohya_version="chroma",
    implementation="https://github.com/lodestone-rock/flow",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "chroma1",
    comfy_encoders={"text_encoder": "t5xxl"},
    repository="lodestones/Chroma1-HD",
    pipelines={"": "ChromaPipeline"},
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    embedding_tensors=("t5xxl",),
    programs=("ComfyUI", "Forge", "diffusers"),
    naming_rows={**NAMING_ROWS, **_TEXT_ROWS},
    versions={"ComfyUI": COMFY_OF_FLOW},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "chroma")
