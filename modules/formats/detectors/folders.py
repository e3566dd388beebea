"""Signs of models in diffusers' folder layout: the JSON files beside the weights. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modules.formats.file_kind import FAMILY_OF, MODEL_LABELS, VARIANT_OF_CHANNELS, FileKind, Prediction

_PIPELINES = {
    "StableDiffusionPipeline": ("sd", ""),
    "StableDiffusionImg2ImgPipeline": ("sd", ""),
    "StableDiffusionInpaintPipeline": ("sd", "inpainting"),
    "StableDiffusionInstructPix2PixPipeline": ("sd", "instruct"),
    "StableDiffusionDepth2ImgPipeline": ("sd", "depth"),
    "StableDiffusionXLPipeline": ("sdxl", ""),
    "StableDiffusionXLImg2ImgPipeline": ("sdxl", ""),
    "StableDiffusionXLInpaintPipeline": ("sdxl", "inpainting"),
    "StableDiffusionXLInstructPix2PixPipeline": ("sdxl", "instruct"),
}
_PARTS = {"sd": ("unet", "vae", "text_encoder"), "sdxl": ("unet", "vae", "text_encoder", "text_encoder_2")}


def folder_kind(folder: Path) -> FileKind:
    """Return what a folder is; where it is no model, a record that says so."""
    index = _json(folder / "model_index.json")
    if index is None:
        return _without_index(folder)
    name = str(index.get("_class_name", "nothing"))
    if name not in _PIPELINES:
        return FileKind("other_model", f"A diffusers folder of a {name}, which this program does not train.")
    family, variant = _PIPELINES[name]
    unet = _json(folder / "unet" / "config.json") or {}
    scheduler = _json(folder / "scheduler" / "scheduler_config.json") or {}
    prediction: Prediction = "v_prediction" if scheduler.get("prediction_type") == "v_prediction" else "epsilon"
    model = _model(family, unet, index, prediction)
    variant = variant or VARIANT_OF_CHANNELS.get(unet.get("in_channels", 4), "")
    zero_snr = bool(scheduler.get("rescale_betas_zero_snr", False))
    facts = {"layout": "diffusers", "pipeline": name}
    wanted = [p for p in _PARTS[family] if not (model == "sdxl_refiner" and p == "text_encoder")]
    if lacks := [p for p in wanted if not any((folder / p).glob("*.safetensors"))]:
        facts["missing"] = ", ".join(lacks)
    return FileKind(
        "diffusers_folder",
        _sentence(model, variant, prediction, zero_snr, facts),
        FAMILY_OF[model],
        model,
        variant,
        prediction,
        zero_snr,
        facts,
    )


def _without_index(folder: Path) -> FileKind:
    config = _json(folder / "config.json")
    if _json(folder / "adapter_config.json") is not None:
        return FileKind("lora", f"{folder.name} is a PEFT adapter's folder.", facts={"form": "peft folder"})
    if config is not None:
        name = str(config.get("_class_name") or config.get("model_type") or "model")
        return FileKind("part", f"{folder.name} holds one part of a model alone: {name}.")
    return FileKind("unknown", f"{folder.name} is no model's folder: there is no model_index.json in it.")


def _model(family: str, unet: dict[str, Any], index: dict[str, Any], prediction: Prediction) -> str:
    if family == "sdxl":
        first = index.get("text_encoder")
        return "sdxl_refiner" if isinstance(first, list) and first and first[0] is None else "sdxl"
    width = unet.get("cross_attention_dim")
    is_second = width == 1024 if width in (768, 1024) else bool(unet.get("use_linear_projection"))
    if not is_second:
        return "sd1"
    return "sd2_v" if prediction == "v_prediction" else "sd2"


def _sentence(model: str, variant: str, prediction: Prediction, zero_snr: bool, facts: dict[str, str]) -> str:
    what = "velocity" if prediction == "v_prediction" else "epsilon"
    text = f"A {MODEL_LABELS[model]}{f' {variant}' if variant else ''} in diffusers' folder layout that predicts {what}"
    text += " with zero terminal SNR" if zero_snr else ""
    if "missing" in facts:
        text += f"; the weights of {facts['missing']} are missing"
    return f"{text}."


def _json(file: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
