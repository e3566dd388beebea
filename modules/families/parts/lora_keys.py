"""What the layers of the Stable Diffusion models are called in LoRA files, and whose model a file is said to be of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.diffusion.process import PredictionType
from modules.families.spec import LoraNaming
from modules.formats.lora_names import kohya_naming, peft_name, readable_kohya_names
from modules.formats.metadata import architecture_of
from modules.formats.single_file.write import configs_to_bring


def naming_of(model: str, parts: Mapping[str, Any], *, base_version: str, prediction: PredictionType) -> LoraNaming:
    """Return the names of a loaded model's layers; `model` is one of those that `modules/formats` knows.

    Kohya's names hang on the UNet's config, for the original layout counts its blocks through.
    """
    configs = {name: module.config.to_dict() for name, module in parts.items() if name.startswith("text_encoder")}
    configs |= {"unet": dict(parts["unet"].config)}
    return LoraNaming(
        kohya_naming(model, configs),
        peft_name,
        base_version,
        architecture_of(model),
        model,
        readable_kohya_names(model, configs),
        prediction,
        own_configs=configs_to_bring(model, {**configs, "vae": dict(parts["vae"].config)}),
    )
