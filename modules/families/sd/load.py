"""Loads Stable Diffusion 1.x or 2.x from a diffusers folder, a Hugging Face repository or a single file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from modules.families.parts.clip_text import is_open_clip
from modules.families.parts.files import ModelFiles
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.sd.forward import StableDiffusion
from modules.families.sd.settings import SdSettings
from modules.families.sd.spec import SD
from modules.families.spec import LoraNaming


def load(request: LoadRequest[SdSettings]) -> StableDiffusion:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Stable Diffusion 1.x or 2.x.
    """
    return assemble(read_model(request, SD), request.settings)


def assemble(files: ModelFiles, settings: SdSettings) -> StableDiffusion:
    """Build the model from its files, which were read from any form."""
    tower = files.tower(
        "text_encoder",
        skipped_layers=settings.skipped_layers("text_encoder"),
        is_normed=True,
        is_weighted=settings.prompt_weighting,
    )
    return StableDiffusion.of(SD, files, settings, {"text_encoder": tower}, partial(_lora_naming, files.parts))


def _lora_naming(parts: Mapping[str, Any], prediction: str) -> LoraNaming:
    """Return the names for SD 1.x, or for SD 2.x, whose text encoder is OpenCLIP's.

    The versions are kohya's, with "_v" for v-prediction (formats.md 5.3).
    """
    is_velocity = prediction == "v_prediction"
    if is_open_clip(parts["text_encoder"]):
        return naming_of("sd2_v" if is_velocity else "sd2", parts, prediction=prediction)
    return naming_of("sd1", parts, prediction=prediction, version="sd_v1_v" if is_velocity else "")
