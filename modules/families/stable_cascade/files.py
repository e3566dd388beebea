"""The files of Stable Cascade: folders of the prior, the names of layers in LoRA files, files of the prior alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.lora_names import clip_targets, with_clip_g_alone
from modules.families.parts.single_file.detect import denoiser_kind
from modules.families.parts.single_file.record import SingleFile
from modules.families.published import Configs, FamilyFiles, PublishedModel
from modules.families.stable_cascade.unet_file import LAYERS, PRIOR_FILE
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.program_table import RAW_PEFT, SGM_NAMES, UNMEASURED, Row, none

_OTHERS: Row = {
    **UNMEASURED,
    "diffusers": none("its pipelines of Stable Cascade load no LoRA"),
    **dict.fromkeys(("diffusers 0.31", "sd-scripts"), none("does not support this model")),
}
_NAMING_ROWS: Mapping[str, Row] = dict.fromkeys(
    (
        *("PEFT, denoiser", "PEFT, text", RAW_PEFT, SGM_NAMES, "kohya, diffusers names", "kohya, text"),
        *("kohya, SGM and diffusers names", "ComfyUI, original names", "ComfyUI, diffusers names", "ComfyUI, text"),
    ),
    _OTHERS,
)


def _targets(configs: Configs) -> AdapterTargets:
    text = clip_targets("text_encoder", configs["text_encoder"], "lora_prior_te_", has_projection=True)
    return with_clip_g_alone(AdapterTargets.of((*LAYERS.targets(configs["prior"]), *text)))


_MODEL = PublishedModel(
    name="stable_cascade",
    label="Stable Cascade",
    family="stable_cascade",
    architecture="stable-cascade-v1-prior",
    kohya_version="stable_cascade",
    implementation="https://github.com/Stability-AI/StableCascade",
    adapter_targets=_targets,
    configs=Path(__file__).parent / "configs" / "stable_cascade",
    comfy_encoders={"text_encoder": "clip_g"},
    pipelines={"": "StableCascadePriorPipeline"},
    index={"image_encoder": [None, None], "feature_extractor": [None, None], "resolution_multiple": 42.67},
    single_file=SingleFile(
        parts=lambda configs: (PRIOR_FILE.layout(configs["prior"]),),
        original_names=PRIOR_FILE.original_names,
        shaping={
            "prior": (
                *("block_out_channels", "down_num_layers_per_block", "up_num_layers_per_block", "conditioning_dim"),
                *("num_attention_heads", "block_types_per_layer", "clip_text_in_channels", "clip_image_in_channels"),
                "clip_text_pooled_in_channels",
            )
        },
    ),
    embedding_tensors=("clip_g",),
    without_embeddings={"diffusers": "its pipelines of Stable Cascade load no embeddings"},
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    weight_bytes=4,
)


def _checkpoint(header: CheckpointHeader) -> FileKind | None:
    return denoiser_kind(header, _MODEL, "prior", PRIOR_FILE, "epsilon")


FILES = FamilyFiles(
    models=(_MODEL,),
    pipelines={"StableCascadePriorPipeline": ""},
    folder_model=lambda facts: _MODEL.name,
    checkpoint=_checkpoint,
    denoiser_file=PRIOR_FILE,
    lora_words=(("stable-cascade", _MODEL.name), ("stable_cascade", _MODEL.name)),
    repository_model=lambda name: _MODEL.name,
)
