"""The files of Sana: folders, the names of layers in LoRA files, and files of the transformer alone.

diffusers' names have the prefix `transformer.`, and its pipeline loads them. ComfyUI does not have the model; nodes of
others read its published checkpoints.
"""

from __future__ import annotations

from pathlib import Path

from modules.families.parts.double_stream import double_stream_targets
from modules.families.parts.single_file.transformer_file import files_of_one_model, single_transformer
from modules.families.published import Configs, PublishedModel
from modules.families.sana.transformer_file import TRANSFORMER_FILE, transformer_layers
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.program_table import ALL, NAMES, UNMEASURED, Row, none

# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_attention_heads", "attention_head_dim", "num_cross_attention_heads", "cross_attention_dim"),
    *("cross_attention_head_dim", "caption_channels", "mlp_ratio", "qk_norm", "sample_size", "interpolation_scale"),
)
_NO_MODEL = none("does not have this model")
_OTHERS: Row = {**UNMEASURED, **dict.fromkeys(("ComfyUI", "diffusers 0.31", "sd-scripts"), _NO_MODEL)}
_LOADED: Row = {**_OTHERS, "diffusers": ALL}
_IGNORED: Row = {**_OTHERS, "diffusers": none("its pipeline of Sana reads no other names than its own")}
# diffusers was measured at toy size (2026-11-29).
_NAMING_ROWS = {**dict.fromkeys(NAMES, _IGNORED), "PEFT, denoiser": _LOADED}


def _targets(configs: Configs) -> AdapterTargets:
    return AdapterTargets.of(*double_stream_targets("transformer", transformer_layers(configs["transformer"])))


MODEL = PublishedModel(
    name="sana",
    label="Sana",
    family="sana",
    architecture="sana",
    kohya_version="sana",
    implementation="https://github.com/NVlabs/Sana",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "sana",
    repository="Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers",
    pipelines={"": "SanaPipeline"},
    single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "sana")
