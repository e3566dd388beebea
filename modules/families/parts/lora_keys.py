"""The names of a loaded model's layers in LoRA files, and the model that a file's metadata names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.families.parts.lora_names import kohya_naming, peft_name
from modules.families.parts.single_file.sizes import configs_to_bring
from modules.families.registry import FAMILIES, files_of, published
from modules.families.spec import LoraNaming


def naming_of(model: str, parts: Mapping[str, Any], *, prediction: str, version: str = "") -> LoraNaming:
    """Return the names of a loaded model's layers; `model` is its published model.

    `version` overrides the published model's kohya version. Kohya's names depend on the UNet's config, since the
    original layout numbers its blocks consecutively.
    """
    record = published(model)
    configs = {name: _config(module) for name, module in parts.items()}
    denoiser = configs[FAMILIES[record.family].denoiser.name]
    variant = files_of(record.family).variants.get(int(denoiser["in_channels"]), "")
    return LoraNaming(
        kohya_naming(model, configs),
        peft_name,
        version or record.kohya_version,
        record.architecture_of(variant),
        model,
        record.adapter_targets(configs),
        prediction,
        own_configs=configs_to_bring(model, configs),
        variant=variant,
        is_v2=record.is_v2,
    )


def _config(module: Any) -> dict[str, Any]:
    """Return a part's config: diffusers' is a mapping, transformers' an object."""
    config = module.config
    return config.to_dict() if hasattr(config, "to_dict") else dict(config)
