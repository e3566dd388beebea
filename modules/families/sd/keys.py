"""What SD 1.x and 2.x are called in LoRA files, with diffusers' names for the UNet's layers, as kohya's trainers do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.diffusion.process import PredictionType
from modules.families.parts.clip_text import is_open_clip
from modules.families.parts.lora_keys import naming_of
from modules.families.spec import LoraNaming


def lora_naming(parts: Mapping[str, Any], *, prediction: PredictionType) -> LoraNaming:
    """Return the names for SD 1.x, or for SD 2.x, whose text encoder is OpenCLIP's.

    The versions are kohya's, with "_v" for v-prediction, the architectures ModelSpec's (formats.md 5.3).
    """
    is_velocity = prediction == "v_prediction"
    version = ("sd_v2" if is_open_clip(parts["text_encoder"]) else "sd_v1") + ("_v" if is_velocity else "")
    model = {"sd_v2": "sd2", "sd_v2_v": "sd2_v"}.get(version, "sd1")
    return naming_of(model, parts, base_version=version, prediction=prediction)
