"""The files of FLUX.1: folders, the names of layers in LoRA files, and files of the transformer alone.

kohya's trainers name the transformer's layers as the published checkpoints do, with the projections of queries, keys
and values in one matrix; diffusers' names have the prefix `transformer.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.families.flux.transformer_file import TRANSFORMER_FILE, transformer_layers
from modules.families.kinds.file_kind import FileKind
from modules.families.parts.double_stream import NAMING_ROWS, double_stream_targets
from modules.families.parts.lora_names import clip_targets
from modules.families.parts.single_file.detect import denoiser_kind
from modules.families.parts.single_file.transformer_file import single_transformer
from modules.families.parts.t5_layers import t5_targets
from modules.families.published import Configs, FamilyFiles, PublishedModel
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.program_table import ALL, COMFY_OF_FLOW, UNKNOWN, Row, none, refuses

_CONFIGS = Path(__file__).parent / "configs"
_FILL_CHANNELS = 384
_NO_T5 = none("loads no LoRA of T5")
_NO_NORM = none("does not map the norms of CLIP")
_TEXT_ROWS: Mapping[str, Row] = {
    "kohya, text": {
        "ComfyUI": {"": ALL, "norm": _NO_NORM},
        "Forge": UNKNOWN,
        "diffusers": {"": ALL, "T5": refuses("raises an error: the file has layers of T5")},
        "sd-scripts": {"": ALL, "norm": UNKNOWN},
    },
    "PEFT, text": {
        "ComfyUI": {"": ALL, "norm": _NO_NORM, "T5": none("does not map T5 in this form")},
        "Forge": UNKNOWN,
        "diffusers": {"": ALL, "T5": _NO_T5},
    },
    "ComfyUI, text": {"ComfyUI": ALL, "diffusers": UNKNOWN},
}
# What makes a model different from the published one.
_SHAPING = (
    *("num_layers", "num_single_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim"),
    *("pooled_projection_dim", "axes_dims_rope"),
)


def _targets(configs: Configs) -> AdapterTargets:
    layers, matrices = double_stream_targets("transformer", transformer_layers(configs["transformer"]))
    clip = clip_targets("text_encoder", configs["text_encoder"], "lora_te1_")
    t5 = t5_targets("text_encoder_2", configs["text_encoder_2"], "lora_te3_")
    return AdapterTargets.of((*layers, *clip, *t5), matrices)


def _model(name: str, label: str, architecture: str, *, pipelines: Mapping[str, str]) -> PublishedModel:
    return PublishedModel(
        name=name,
        label=label,
        family="flux",
        architecture=architecture,
        variant_architectures={"inpainting": "flux-1-fill-dev"},
        kohya_version="flux1",
        implementation="https://github.com/black-forest-labs/flux",
        adapter_targets=_targets,
        comfy_encoders={"text_encoder": "clip_l", "text_encoder_2": "t5xxl"},
        configs=_CONFIGS / name,
        repository="black-forest-labs/FLUX.1-schnell",  # the one whose licence allows everybody to read it
        pipelines=pipelines,
        single_file=single_transformer(TRANSFORMER_FILE, *_SHAPING),
        embedding_tensors=("clip_l", "t5xxl"),
        programs=("ComfyUI", "Forge", "diffusers"),
        naming_rows={**NAMING_ROWS, **_TEXT_ROWS},
        versions={"ComfyUI": COMFY_OF_FLOW},
    )


_DEV = _model("flux_dev", "FLUX.1 dev", "flux-1-dev", pipelines={"": "FluxPipeline", "inpainting": "FluxFillPipeline"})
_SCHNELL = _model("flux_schnell", "FLUX.1 schnell", "flux-1-schnell", pipelines={"": "FluxPipeline"})


def published_name(config: Mapping[str, Any]) -> str:
    """Return the published model that a transformer with this config is like: schnell alone reads no guidance scale."""
    return _DEV.name if config.get("guidance_embeds") else _SCHNELL.name


def _checkpoint(header: CheckpointHeader) -> FileKind | None:
    has_guidance = any(".guidance_" in f".{name}" for name in header.shapes)
    return denoiser_kind(header, _DEV if has_guidance else _SCHNELL, "transformer", TRANSFORMER_FILE, "flow")


FILES = FamilyFiles(
    models=(_DEV, _SCHNELL),
    pipelines={"FluxPipeline": "", "FluxFillPipeline": "inpainting"},
    folder_model=lambda facts: published_name(facts.denoiser),
    checkpoint=_checkpoint,
    denoiser_file=TRANSFORMER_FILE,
    lora_words=(("schnell", _SCHNELL.name), ("flux", _DEV.name)),
    variants={_FILL_CHANNELS: "inpainting"},
    repository_model=lambda name: _SCHNELL.name if "schnell" in name.lower() else _DEV.name,
)
