"""The files of SD 1.x and 2.x: markers, pipelines, key layout, and the names of layers in LoRA files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.lora_names import unet_clip_targets
from modules.families.parts.single_file.record import PredictionMark
from modules.families.parts.unet_clip_file.detect import VARIANTS, checkpoint_of
from modules.families.parts.unet_clip_file.layout import UNET_FILE, TextPlace, UnetClipFile
from modules.families.parts.unet_clip_file.naming_rows import SD_ROWS
from modules.families.parts.unet_clip_file.sidecar import Sidecar
from modules.families.published import ALL_PROGRAMS, FamilyFiles, FolderFacts, PublishedModel
from modules.formats.checkpoint_header import CheckpointHeader, read_values

# SD 1 needs a sidecar for v-prediction alone, SD 2 always.
_FIRST_SIDECAR = Sidecar(Path(__file__).parent / "sidecars" / "sd1.yaml")
_SECOND_SIDECAR = Sidecar(Path(__file__).parent / "sidecars" / "sd2.yaml", is_always_needed=True)
_TARGETS = unet_clip_targets({"text_encoder": "lora_te"}, writes_sgm=False)
_NORM = "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.norm1.bias"
_VELOCITY_SPREAD = 0.09
_EPSILON_STEP = 875_000
_PIPELINES = {
    "": "StableDiffusionPipeline",
    "inpainting": "StableDiffusionInpaintPipeline",
    "instruct": "StableDiffusionInstructPix2PixPipeline",
    "depth": "StableDiffusionDepth2ImgPipeline",
}
_VARIANT_INDEX = {"depth": {"depth_estimator": [None, None]}}  # a folder does not contain it
_COMPANIONS = {"depth": "depth_model."}  # MiDaS, in LDM's `LatentDepth2ImageDiffusion`
_INDEX = {"safety_checker": [None, None], "feature_extractor": [None, None]}
_WIDTHS = {768: False, 1024: True}  # width of the text states: whether it is SD 2


def second_prediction(header: CheckpointHeader) -> PredictionMark | None:
    """Return the prediction type of an SD 2 file from its weights: by the global step of the published 512 model (as
    diffusers does), or by the standard deviation of one norm's biases (as ComfyUI does).
    """
    if header.values.get("global_step") == _EPSILON_STEP:
        return PredictionMark("epsilon", False, "global_step")
    values = read_values(header, _NORM)
    if values is None or values.size == 0:
        return None
    is_velocity = float(values.std()) > _VELOCITY_SPREAD
    return PredictionMark("v_prediction" if is_velocity else "epsilon", False, "norm biases")


def _note(program: str, kind: FileKind) -> str:
    """Return the user's steps for v-prediction: only ComfyUI and diffusers detect the 768 model of SD 2."""
    if kind.prediction != "v_prediction":
        return ""
    is_published = kind.model == _SD2_V.name
    if program == "diffusers":
        snr = ", rescale_betas_zero_snr=True" if kind.zero_snr else ""
        is_known = is_published and not kind.zero_snr
        return "" if is_known else f'set prediction_type="v_prediction"{snr} in its scheduler'
    if program == "ComfyUI":
        return "" if is_published else "add a ModelSamplingDiscrete node set to v_prediction"
    has_sidecar = kind.facts.get("prediction_from", "").endswith((".yaml", ".yml"))
    return "keep the .yaml next to it" if has_sidecar else "" if is_published else "needs a .yaml next to it"


_SD1_FILE = UnetClipFile(
    text=(TextPlace("text_encoder", "cond_stage_model.transformer."),),
    markers=("cond_stage_model.transformer.",),
    sidecar=_FIRST_SIDECAR,
)
_of_sd = partial(
    PublishedModel,
    family="sd",
    programs=ALL_PROGRAMS,
    naming_rows=SD_ROWS,
    adapter_targets=_TARGETS,
    pipelines=_PIPELINES,
    index=_INDEX,
    variant_index=_VARIANT_INDEX,
    prediction_note=_note,
    weight_bytes=4,
    versions={},
)
_SD1 = _of_sd(
    name="sd1",
    label="Stable Diffusion 1.x",
    architecture="stable-diffusion-v1",
    implementation="https://github.com/CompVis/stable-diffusion",
    variant_architectures={"inpainting": "stable-diffusion-v1-inpainting"},
    kohya_version="sd_v1",
    comfy_encoders={"text_encoder": "clip_l"},
    single_file=_SD1_FILE.single_file(),
    text_width=768,
    embedding_width=768,
)
_SECOND = (TextPlace("text_encoder", "cond_stage_model.model.", is_open_clip=True),)
_SD2_FILE = UnetClipFile(
    text=_SECOND,
    markers=("cond_stage_model.model.",),
    velocity_model="sd2_v",
    is_ambiguous=True,
    prediction_from_weights=second_prediction,
    sidecar=_SECOND_SIDECAR,
    companions=_COMPANIONS,
)
_SD2 = _of_sd(
    name="sd2",
    label="Stable Diffusion 2.x",
    architecture="stable-diffusion-v2-512",
    implementation="https://github.com/Stability-AI/stablediffusion",
    variant_architectures={
        "inpainting": "stable-diffusion-v2-inpainting",
        "depth": "stable-diffusion-v2-depth",
    },
    kohya_version="sd_v2",
    comfy_encoders={"text_encoder": "clip_h"},
    single_file=_SD2_FILE.single_file(),
    is_v2=True,
    text_width=1024,
    embedding_width=1024,
)
_SD2_V_FILE = UnetClipFile(text=_SECOND, markers=(), is_ambiguous=True, sidecar=_SECOND_SIDECAR, companions=_COMPANIONS)
_SD2_V = replace(
    _SD2,
    name="sd2_v",
    architecture="stable-diffusion-v2-768-v",
    variant_architectures={},
    kohya_version="sd_v2_v",
    single_file=_SD2_V_FILE.single_file(),
    embedding_width=0,
)
_MODELS = ((_SD1, _SD1_FILE), (_SD2, _SD2_FILE), (_SD2_V, _SD2_V_FILE))


def _folder_model(facts: FolderFacts) -> str:
    width = facts.denoiser.get("cross_attention_dim")
    is_second = _WIDTHS[width] if width in _WIDTHS else bool(facts.denoiser.get("use_linear_projection"))
    if not is_second:
        return _SD1.name
    return _SD2_V.name if facts.prediction == "v_prediction" else _SD2.name


def _repository_model(name: str) -> str:
    is_second = any(word in name.lower() for word in ("stable-diffusion-2", "sd-2", "sd2"))
    return _SD2.name if is_second else _SD1.name


FILES = FamilyFiles(
    models=tuple(model for model, _ in _MODELS),
    pipelines={
        **{pipeline: variant for variant, pipeline in _PIPELINES.items()},
        "StableDiffusionImg2ImgPipeline": "",
    },
    folder_model=_folder_model,
    checkpoint=lambda header: checkpoint_of(header, _MODELS),
    lora_words=(
        ("ss_v2=true", "sd2"),
        ("sd_v2", "sd2"),
        ("sd_2", "sd2"),
        ("stable-diffusion-v2", "sd2"),
        ("sd_v1", "sd1"),
        ("sd_1", "sd1"),
        ("stable-diffusion-v1", "sd1"),
    ),
    denoiser_file=UNET_FILE,
    variants=VARIANTS,
    repository_model=_repository_model,
)
