"""The configs of published models and the original layout of their parts. Torch-free.

Prefixes are those of the published files (formats.md 5.5 in short). A file's own configs override the published ones,
so that models of unusual size keep their shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from modules.families.parts.single_file.clip_layout import clip_slots, open_clip_slots
from modules.families.parts.single_file.record import Configs, PartLayout
from modules.families.parts.single_file.unet_layout import unet_slots
from modules.families.parts.single_file.vae_layout import vae_slots
from modules.families.registry import published
from modules.system.errors import DarkroomError

CONFIGS_KEY = "darkroom_part_configs"
"""The metadata key with the parts' configs in a file of unusual size, as JSON by part."""

_MAX_CONFIGS_CHARS = 500_000  # real ones have a few thousand

UNET_PREFIX = "model.diffusion_model."
VAE_PREFIX = "first_stage_model."
EMA_PREFIX = "model_ema.diffusion_model"
"""Of the UNet's EMA weights, whose names have no dots behind it (LDM's `LitEma`)."""


def shipped_configs(model: str) -> dict[str, dict[str, Any]]:
    """Return the configs of a model's parts and of its scheduler, by part. Raises DarkroomError for an unknown name."""
    return published(model).shipped_configs()


def configs_of_file(
    model: str, shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the configs of a checkpoint's parts: the bundled ones, with the input channels of its tensors and the
    configs in its metadata. `shapes` are by original names.
    """
    configs = shipped_configs(model)
    first = shapes.get(f"{UNET_PREFIX}input_blocks.0.0.weight") or shapes.get(f"{EMA_PREFIX}input_blocks00weight", ())
    if len(first) == 4 and "unet" in configs:
        configs["unet"]["in_channels"] = first[1]
    text = metadata.get(CONFIGS_KEY, "{}")
    try:
        brought = json.loads(text) if len(text) <= _MAX_CONFIGS_CHARS else {}
    except (ValueError, RecursionError):
        brought = {}
    if isinstance(brought, dict):
        known = configs or brought  # without bundled configs, the file's own are the only ones
        configs |= {n: c for n, c in brought.items() if n in known and isinstance(c, dict)}
    return configs


def layouts(model: str, configs: Configs) -> dict[str, PartLayout]:
    """Return the layout of every part of a model that `configs` describes, by part; none for a model without a
    single-file form.

    Raises DarkroomError where the configs, which may come from a file, are not valid.
    """
    try:
        return _layouts(model, configs)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise DarkroomError(f"The configs of the model's parts are not valid: {str(error)[:200]!r}.") from error


def _layouts(model: str, configs: Configs) -> dict[str, PartLayout]:
    record = published(model).single_file
    if record is None:
        return {}
    found = {
        "unet": PartLayout("unet", UNET_PREFIX, unet_slots(configs["unet"])),
        "vae": PartLayout("vae", VAE_PREFIX, vae_slots(configs["vae"])),
    }
    for text in record.text:
        slots_of = open_clip_slots if text.is_open_clip else clip_slots
        slots = slots_of(configs[text.part], projection=text.has_projection)
        found[text.part] = PartLayout(text.part, text.prefix, slots, text.is_open_clip)
    return found
