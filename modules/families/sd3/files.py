"""The files of Stable Diffusion 3 and 3.5: folders, single files, and the names of layers in LoRA files.

kohya's trainers name the transformer's layers as the published checkpoints do, with the projections of queries, keys
and values in one matrix; diffusers' names have the prefix `transformer.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.double_stream import double_stream_targets
from modules.families.parts.lora_names import clip_targets
from modules.families.parts.t5_layers import t5_targets
from modules.families.published import Configs, FamilyFiles, PublishedModel
from modules.families.sd3.checkpoint_file import SINGLE_FILE, checkpoint_kind
from modules.families.sd3.transformer_file import TRANSFORMER_FILE, transformer_layers
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.program_table import (
    ALL,
    COMFY_OF_FLOW,
    RAW_PEFT,
    SGM_NAMES,
    UNKNOWN,
    UNMEASURED,
    Answer,
    Row,
    none,
    refuses,
)

_CONFIGS = Path(__file__).parent / "configs"
_NOT_KOHYA = none("does not map kohya's names of this model")
_NOT_COMFY = refuses("raises an error: it reads no names of this form")
_TEXT = {"": ALL, "norm": UNKNOWN}
_T5 = none("loads no LoRA of T5")


def _naming_rows(comfy_of_diffusers: Answer) -> Mapping[str, Row]:
    """Return the answers of programs to the names of layers.

    diffusers was measured, on 2026-11-28; ComfyUI's are the names in its maps, in diffusers' names
    `comfy_of_diffusers`.
    """
    in_diffusers: Row = {**UNMEASURED, "ComfyUI": comfy_of_diffusers}
    return {
        SGM_NAMES: {**UNMEASURED, "ComfyUI": ALL, "diffusers": _NOT_KOHYA, "sd-scripts": {"": ALL, "outside": UNKNOWN}},
        "ComfyUI, original names": {**UNMEASURED, "ComfyUI": ALL, "diffusers": _NOT_COMFY},
        "ComfyUI, text": {**UNMEASURED, "ComfyUI": ALL, "diffusers": _NOT_COMFY},
        "PEFT, denoiser": {**in_diffusers, "diffusers": ALL},
        RAW_PEFT: in_diffusers,
        "SimpleTuner": {**in_diffusers, "diffusers": _NOT_KOHYA},
        "OneTrainer, lora_transformer_": {**in_diffusers, "diffusers": _NOT_KOHYA},
        "kohya, text": {
            **UNMEASURED,
            "ComfyUI": {"": ALL, "norm": UNKNOWN},
            "diffusers": _NOT_KOHYA,
            "sd-scripts": ALL,
        },
        "PEFT, text": {**UNMEASURED, "diffusers": {"": ALL, "T5": _T5}},
    }


def _targets(configs: Configs) -> AdapterTargets:
    layers, matrices = double_stream_targets("transformer", transformer_layers(configs["transformer"]))
    text = [
        target
        for part, prefix in (("text_encoder", "lora_te1_"), ("text_encoder_2", "lora_te2_"))
        if part in configs
        for target in clip_targets(part, configs[part], prefix, has_projection=True)
    ]
    if (t5 := "text_encoder_3") in configs:
        text += t5_targets(t5, configs[t5], "lora_te3_")
    return AdapterTargets.of((*layers, *text), matrices)


def _model(name: str, label: str, *, architecture: str, kohya_version: str, repository: str) -> PublishedModel:
    return PublishedModel(
        name=name,
        label=label,
        family="sd3",
        architecture=architecture,
        kohya_version=kohya_version,
        implementation="https://github.com/Stability-AI/sd3.5",
        adapter_targets=_targets,
        comfy_encoders={"text_encoder": "clip_l", "text_encoder_2": "clip_g", "text_encoder_3": "t5xxl"},
        configs=_CONFIGS / name,
        repository=f"stabilityai/{repository}",
        pipelines={"": "StableDiffusion3Pipeline"},
        single_file=SINGLE_FILE,
        embedding_tensors=("clip_l", "clip_g", "t5xxl"),
        programs=("ComfyUI", "Forge", "diffusers"),
        # Its map has no output layer of a second attention.
        naming_rows=_naming_rows(UNKNOWN if name == "sd35_medium" else ALL),
        versions={"ComfyUI": COMFY_OF_FLOW},
    )


_MEDIUM = _model(
    "sd3_medium",
    "Stable Diffusion 3 Medium",
    architecture="stable-diffusion-3-medium",
    kohya_version="medium",
    repository="stable-diffusion-3-medium-diffusers",
)
_MEDIUM_35 = _model(
    "sd35_medium",
    "Stable Diffusion 3.5 Medium",
    architecture="stable-diffusion-3-5-medium",
    kohya_version="5-medium",
    repository="stable-diffusion-3.5-medium",
)
_LARGE_35 = _model(
    "sd35_large",
    "Stable Diffusion 3.5 Large",
    architecture="stable-diffusion-3-5-large",
    kohya_version="5-large",
    repository="stable-diffusion-3.5-large",
)


def published_name(config: Mapping[str, Any]) -> str:
    """Return the published model that a transformer with this config is like."""
    if config.get("dual_attention_layers"):
        return _MEDIUM_35.name
    return _LARGE_35.name if config.get("qk_norm") else _MEDIUM.name


def _checkpoint(header: CheckpointHeader) -> FileKind | None:
    names = [f".{name}" for name in header.shapes]
    if any(".attn2." in name for name in names):
        model = _MEDIUM_35
    else:
        has_norms = any(".attn.ln_q." in name or ".attn.norm_q." in name for name in names)
        model = _LARGE_35 if has_norms else _MEDIUM
    return checkpoint_kind(header, model)


def _named(repository: str) -> str:
    name = repository.lower()
    if "large" in name:
        return _LARGE_35.name
    return _MEDIUM_35.name if "3.5" in name or "35" in name else _MEDIUM.name


FILES = FamilyFiles(
    models=(_MEDIUM_35, _LARGE_35, _MEDIUM),
    pipelines={"StableDiffusion3Pipeline": ""},
    folder_model=lambda facts: published_name(facts.denoiser),
    checkpoint=_checkpoint,
    denoiser_file=TRANSFORMER_FILE,
    lora_words=(("3.5-large", _LARGE_35.name), ("sd3", _MEDIUM_35.name)),
    repository_model=_named,
)
