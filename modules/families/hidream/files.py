"""The files of HiDream I1: folders, the names of layers in LoRA files, and files of the transformer alone.

diffusers' names of the layers are those of the published checkpoint, so adapter files differ in prefixes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.families.hidream.transformer_file import TRANSFORMER_FILE, linear_layers
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer
from modules.families.published import Configs, PublishedModel
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from modules.formats.program_table import ALL, COMFY_OF_FLOW, DIFFUSERS_NAMES, UNMEASURED, Row, none, refuses

# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_single_layers", "num_attention_heads", "attention_head_dim", "caption_channels"),
    *("text_emb_dim", "num_routed_experts", "num_activated_experts", "axes_dims_rope", "llama_layers"),
)

# diffusers was measured at toy size (2026-11-29); ComfyUI's are the names in its maps.
_ANSWERS: Row = {
    **UNMEASURED,
    "ComfyUI": ALL,
    "diffusers": ALL,
    **dict.fromkeys(("diffusers 0.31", "sd-scripts"), none("does not have this model")),
}
_NOT_KOHYA = none("does not know kohya's names of this model")
_NAMING_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(("PEFT, denoiser", "ComfyUI, diffusers names"), _ANSWERS),
    **{name: {**_ANSWERS, "diffusers": _NOT_KOHYA} for name in (DIFFUSERS_NAMES, "SimpleTuner")},
}


def _targets(configs: Configs) -> AdapterTargets:
    targets = (
        AdapterTarget("transformer", path, shape, {"diffusers": path}, "lora_unet_", "diffusers")
        for path, shape, _ in linear_layers(configs["transformer"])
    )
    return AdapterTargets.of(tuple(targets))


MODEL = PublishedModel(
    name="hidream_i1",
    label="HiDream I1",
    family="hidream",
    architecture="hidream-i1",
    kohya_version="hidream_i1",
    implementation="https://github.com/HiDream-ai/HiDream-I1",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "hidream_i1",
    repository="HiDream-ai/HiDream-I1-Full",
    pipelines={"": "HiDreamImagePipeline"},
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    extra_rows={"alpha in ComfyUI's names": {"diffusers": refuses("raises an error for alphas in these names")}},
    versions={"ComfyUI": COMFY_OF_FLOW},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "hidream-i1", "hidream_i1", "hidream")
