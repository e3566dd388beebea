"""What SDXL is called in LoRA files.

kohya's trainers train SDXL in the original ("SGM") layout, so its kohya files name the UNet's layers as that does
(formats.md 5.1): `lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q`. Every consumer reads those names
completely; with diffusers' names two layers cannot be told apart by diffusers itself (formats.md 5.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.diffusion.process import PredictionType
from modules.families.parts.lora_keys import naming_of
from modules.families.spec import LoraNaming


def lora_naming(parts: Mapping[str, Any], *, prediction: PredictionType) -> LoraNaming:
    """Return the names; kohya's version of the base model does not tell the prediction of SDXL."""
    return naming_of("sdxl", parts, base_version="sdxl_base_v1-0", prediction=prediction)
