"""The files of SDXL: markers, pipelines, key layout, and the names of layers in LoRA files.

kohya's trainers train SDXL in the original ("SGM") layout, so kohya files use its names for the UNet's layers
(`lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q`). Every program reads those names completely; with
diffusers' names, diffusers itself confuses two layers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.lora_names import unet_clip_targets
from modules.families.parts.single_file.prediction import VELOCITY_TENSOR
from modules.families.parts.unet_clip_file.detect import VARIANTS, checkpoint_of
from modules.families.parts.unet_clip_file.layout import UNET_FILE, TextPlace, UnetClipFile
from modules.families.parts.unet_clip_file.naming_rows import SDXL_ROWS
from modules.families.parts.unet_clip_file.sidecar import Sidecar
from modules.families.published import ALL_PROGRAMS, FamilyFiles, FolderFacts, PublishedModel
from modules.formats.checkpoint_table import velocity_note

_SIDECARS = Path(__file__).parent / "sidecars"
_TARGETS = unet_clip_targets(
    {"text_encoder": "lora_te1", "text_encoder_2": "lora_te2"}, writes_sgm=True, projections=("text_encoder_2",)
)


def _note(program: str, kind: FileKind) -> str:
    """Return the user's steps for v-prediction: ComfyUI and Forge read the marker tensor, A1111 the .yaml."""
    if kind.prediction != "v_prediction":
        return ""
    markers = kind.facts.get("prediction_from", "")
    return velocity_note(
        program,
        has_tensors=VELOCITY_TENSOR in markers,
        has_sidecar=markers.endswith((".yaml", ".yml")),
        zero_snr=kind.zero_snr,
    )


_BASE_FILE = UnetClipFile(
    text=(
        TextPlace("text_encoder", "conditioner.embedders.0.transformer."),
        TextPlace("text_encoder_2", "conditioner.embedders.1.model.", is_open_clip=True, has_projection=True),
    ),
    markers=("conditioner.embedders.1.model.", "conditioner.embedders.0.transformer."),
    has_labels=True,
    sidecar=Sidecar(_SIDECARS / "base.yaml"),
    velocity_tensors=True,
)
_of_sdxl = partial(
    PublishedModel,
    family="sdxl",
    programs=ALL_PROGRAMS,
    naming_rows=SDXL_ROWS,
    implementation="https://github.com/Stability-AI/generative-models",
    adapter_targets=_TARGETS,
    prediction_note=_note,
    weight_bytes=4,
    versions={},
)
_BASE = _of_sdxl(
    name="sdxl",
    label="Stable Diffusion XL",
    architecture="stable-diffusion-xl-v1-base",
    variant_architectures={"instruct": "stable-diffusion-xl-v1-edit"},
    kohya_version="sdxl_base_v1-0",
    comfy_encoders={"text_encoder": "clip_l", "text_encoder_2": "clip_g"},
    pipelines={
        "": "StableDiffusionXLPipeline",
        "inpainting": "StableDiffusionXLInpaintPipeline",
        "instruct": "StableDiffusionXLInstructPix2PixPipeline",
    },
    index={"force_zeros_for_empty_prompt": True},
    single_file=_BASE_FILE.single_file(),
    text_width=2048,
    embedding_tensors=("clip_l", "clip_g"),
)
_REFINER_FILE = UnetClipFile(
    text=(TextPlace("text_encoder_2", "conditioner.embedders.0.model.", is_open_clip=True, has_projection=True),),
    markers=("conditioner.embedders.0.model.",),
    sidecar=Sidecar(_SIDECARS / "refiner.yaml"),
    velocity_tensors=True,
)
_REFINER = _of_sdxl(
    name="sdxl_refiner",
    label="Stable Diffusion XL refiner",
    architecture="stable-diffusion-xl-v1-refiner",
    comfy_encoders={"text_encoder_2": "clip_g"},
    pipelines={"": "StableDiffusionXLImg2ImgPipeline"},
    index={
        "force_zeros_for_empty_prompt": False,
        "text_encoder": [None, None],
        "tokenizer": [None, None],
        "requires_aesthetics_score": True,
    },
    single_file=_REFINER_FILE.single_file(),
    text_width=1280,
)
_MODELS = ((_BASE, _BASE_FILE), (_REFINER, _REFINER_FILE))


def _folder_model(facts: FolderFacts) -> str:
    first = facts.index.get("text_encoder")
    has_none = isinstance(first, list) and bool(first) and first[0] is None
    return _REFINER.name if has_none else _BASE.name


FILES = FamilyFiles(
    models=tuple(model for model, _ in _MODELS),
    pipelines={
        **{pipeline: variant for variant, pipeline in _BASE.pipelines.items()},
        "StableDiffusionXLImg2ImgPipeline": "",
    },
    folder_model=_folder_model,
    checkpoint=lambda header: checkpoint_of(header, _MODELS),
    lora_words=(("sdxl", _BASE.name), ("xl", _BASE.name)),
    denoiser_file=UNET_FILE,
    variants=VARIANTS,
    repository_model=lambda name: _BASE.name,
)
