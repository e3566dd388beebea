"""The files of Krea 2: folders, the names of layers in LoRA files, and files of the transformer alone.

kohya's trainers and ai-toolkit name the layers as the published checkpoints do, and so does ComfyUI; diffusers' names
have the prefix `transformer.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.families.krea2.transformer_file import TRANSFORMER_FILE, transformer_layers
from modules.families.parts.single_file.slots import limited
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer
from modules.families.published import Configs, PublishedModel
from modules.formats.adapter_forms import Layout
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from modules.formats.program_table import (
    ALL,
    COMFY_OF_FLOW,
    DIFFUSERS_NAMES,
    SGM_NAMES,
    UNKNOWN,
    UNMEASURED,
    Row,
    none,
    refuses,
)

# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_attention_heads", "num_key_value_heads", "attention_head_dim", "intermediate_size"),
    *("text_hidden_dim", "num_text_layers", "text_num_attention_heads", "text_intermediate_size"),
    *("num_layerwise_text_blocks", "num_refiner_text_blocks", "timestep_embed_dim", "axes_dims_rope"),
)
# diffusers was measured at toy size (2026-11-28); ComfyUI's are the names in its maps.
_MISSING = dict.fromkeys(("Forge", "diffusers 0.31", "sd-scripts"), none("does not have this model"))
_ANSWERS: Row = {**UNMEASURED, **_MISSING, "ComfyUI": ALL, "diffusers": ALL}
_KOHYA = none("ignores kohya's names of this model")
_NAMING_ROWS: Mapping[str, Row] = {
    "ComfyUI, original names": _ANSWERS,
    "PEFT, denoiser": _ANSWERS,
    SGM_NAMES: {**_ANSWERS, "diffusers": _KOHYA},
    DIFFUSERS_NAMES: {**_ANSWERS, "ComfyUI": none("does not know diffusers' names in this form"), "diffusers": _KOHYA},
    "ComfyUI, diffusers names": {
        **_ANSWERS,
        "diffusers": refuses("raises an error: it expects the names of ComfyUI's checkpoint"),
    },
    "SimpleTuner": {**_ANSWERS, "diffusers": UNKNOWN},
    "PEFT, denoiser without its prefix": {**_ANSWERS, "diffusers": none("needs the prefix transformer.")},
    "other factors in PEFT names": {**_ANSWERS, "diffusers": refuses("raises an error for the factors' names")},
}


def _targets(configs: Configs) -> AdapterTargets:
    def target(path: str, original: str, shape: tuple[int, int]) -> AdapterTarget:
        paths: dict[Layout, str] = {"diffusers": path, "original": original}
        return AdapterTarget("transformer", path, shape, paths, "lora_unet_", "original")

    layers = limited(transformer_layers(configs["transformer"]))
    return AdapterTargets.of(target(layer.path, layer.original, layer.shape) for layer in layers)


MODEL = PublishedModel(
    name="krea2",
    label="Krea 2",
    family="krea2",
    architecture="krea2",
    kohya_version="krea2",
    implementation="https://github.com/krea-ai/krea-2",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "krea2",
    repository="krea/Krea-2-Raw",
    pipelines={"": "Krea2Pipeline"},
    index={
        "text_encoder_select_layers": [2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35],
        "is_distilled": False,
        "patch_size": 2,
    },
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    extra_rows={"alpha in ComfyUI's names": {"diffusers": refuses("raises an error for alphas in these names")}},
    versions={"ComfyUI": COMFY_OF_FLOW},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "krea")
