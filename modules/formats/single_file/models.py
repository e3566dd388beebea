"""The models whose single files are known: their shipped configs and the layout of their parts. Torch-free.

Prefixes as the published files have them (formats.md 5.5 in short). What a config says may be overridden by the file
that brings its own, so that models of unusual size keep their shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from modules.formats.single_file.clip_layout import clip_slots, open_clip_slots
from modules.formats.single_file.slots import Slot
from modules.formats.single_file.unet_layout import unet_slots
from modules.formats.single_file.vae_layout import vae_slots
from modules.system.errors import DarkroomError

Configs = Mapping[str, Mapping[str, Any]]

CONFIGS_KEY = "darkroom_part_configs"
"""Metadata under which a file of unusual size carries its parts' configs, as JSON by part."""

UNET_PREFIX = "model.diffusion_model."
VAE_PREFIX = "first_stage_model."
_CLIP, _OPEN_CLIP = "transformers", "open_clip"
# Per model, its text encoders: our name, the prefix, the naming, and whether it has a projection.
_TEXT = {
    "sd1": (("text_encoder", "cond_stage_model.transformer.", _CLIP, False),),
    "sd2": (("text_encoder", "cond_stage_model.model.", _OPEN_CLIP, False),),
    "sdxl": (
        ("text_encoder", "conditioner.embedders.0.transformer.", _CLIP, False),
        ("text_encoder_2", "conditioner.embedders.1.model.", _OPEN_CLIP, True),
    ),
    "sdxl_refiner": (("text_encoder_2", "conditioner.embedders.0.model.", _OPEN_CLIP, True),),
}
_TEXT["sd2_v"] = _TEXT["sd2"]
MODELS = tuple(sorted(_TEXT))


@dataclass(frozen=True, slots=True)
class PartLayout:
    """One part: its name in diffusers, its prefix in the original layout, and the places of its tensors."""

    name: str
    prefix: str
    slots: tuple[Slot, ...]
    is_open_clip: bool = False


def shipped_configs(model: str) -> dict[str, dict[str, Any]]:
    """Return the configs of a model's parts and of its scheduler, by part. Raises DarkroomError for an unknown name."""
    if model not in MODELS:
        raise DarkroomError(f"There are no configs for {model!r}.", advice=f"Known are {', '.join(MODELS)}.")
    return {name: dict(config) for name, config in _shipped(model).items()}


def configs_of_file(
    model: str, shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the configs of a checkpoint's parts: the shipped ones, with the input channels that its tensors tell and
    whatever configs its metadata brings along. `shapes` are by original names.
    """
    configs = shipped_configs(model)
    first = shapes.get(f"{UNET_PREFIX}input_blocks.0.0.weight", ())
    if len(first) == 4:
        configs["unet"]["in_channels"] = first[1]
    try:
        brought = json.loads(metadata.get(CONFIGS_KEY, "{}"))
    except (ValueError, RecursionError):
        brought = {}
    if isinstance(brought, dict):
        configs |= {n: c for n, c in brought.items() if n in configs and isinstance(c, dict)}
    return configs


def layouts(model: str, configs: Configs) -> dict[str, PartLayout]:
    """Return the layout of every part of a model that `configs` describes, by part.

    Raises DarkroomError where the configs, which may come out of a file, are none.
    """
    try:
        return _layouts(model, configs)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DarkroomError(f"The configs of the model's parts cannot be used: {error!r}.") from error


def _layouts(model: str, configs: Configs) -> dict[str, PartLayout]:
    found = {
        "unet": PartLayout("unet", UNET_PREFIX, unet_slots(configs["unet"])),
        "vae": PartLayout("vae", VAE_PREFIX, vae_slots(configs["vae"])),
    }
    for name, prefix, naming, projection in _TEXT[model]:
        config = configs[name]
        is_open = naming == _OPEN_CLIP
        slots = open_clip_slots(config, projection=projection) if is_open else clip_slots(config, projection=projection)
        found[name] = PartLayout(name, prefix, slots, is_open)
    return found


@cache
def _shipped(model: str) -> dict[str, dict[str, Any]]:
    folder = Path(__file__).parent / "configs" / model
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
