"""The configs of published models, and the original layout of their parts, by the names of tensors in a file.

Prefixes are those of the published files (formats.md 5.5 in short). A file's own configs override the published ones,
so that models of unusual size keep their shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from modules.families.parts.single_file.layouts import clip_slots, open_clip_slots, unet_slots, vae_slots
from modules.families.parts.single_file.record import Configs, PartLayout
from modules.families.parts.single_file.slots import missing_originals
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


_CLIP_PREFIXES = ("cond_stage_model.transformer.", "conditioner.embedders.0.transformer.")
_CLIP_MODULES = ("embeddings.", "encoder.", "final_layer_norm.")
# Tensors under a part's prefix that are not weights of the part.
_IDLE_ENDS = ("position_ids", "logit_scale", "attn_mask", "text_projection", "text_projection.weight")
_IDLE_BEGINNINGS = (f"{VAE_PREFIX}loss.", f"{VAE_PREFIX}model_ema.")


def original_names(names: Iterable[str]) -> dict[str, str]:
    """Return the original layout's name of each tensor of a file: `{original: name in the file}`."""
    names = list(names)
    bare_unet = any(n.startswith("input_blocks.0.0.") for n in names)
    bare_vae = any(n.startswith(("decoder.up.", "encoder.down.")) for n in names)
    return {_original(name, bare_unet=bare_unet, bare_vae=bare_vae): name for name in names}


def averaged_names(layout: PartLayout, names: Iterable[str]) -> dict[str, str]:
    """Return the names of the UNet's EMA weights, `{original: name in the file}`, where there are any."""
    there = set(names)
    flat = {s.original: f"{EMA_PREFIX}{s.original.replace('.', '')}" for s in layout.slots}
    return {f"{layout.prefix}{original}": name for original, name in flat.items() if name in there}


def missing_names(layout: PartLayout, names: Iterable[str]) -> list[str]:
    """Return the tensors of a part that are missing from a file's original names."""
    inside = [n.removeprefix(layout.prefix) for n in names if n.startswith(layout.prefix)]
    return [f"{layout.prefix}{n}" for n in missing_originals(layout.slots, inside)]


def left_over_names(layout: PartLayout, names: Iterable[str]) -> list[str]:
    """Return the tensors under a part's prefix that belong to no layer of it, without known unused ones."""
    known = {f"{layout.prefix}{s.original}" for s in layout.slots}
    inside = (n for n in names if n.startswith(layout.prefix) and n not in known)
    return sorted(n for n in inside if not _is_idle(n, layout))


def _is_idle(name: str, layout: PartLayout) -> bool:
    if name.endswith(_IDLE_ENDS) or name.startswith(_IDLE_BEGINNINGS):
        return True
    # SD 2 and others use the states before the last block; diffusers' config then leaves that block out.
    return layout.is_open_clip and ".resblocks." in name


def _original(name: str, *, bare_unet: bool, bare_vae: bool) -> str:
    if bare_unet and name.split(".", 1)[0] in _UNET_MODULES:
        return f"{UNET_PREFIX}{name}"
    if bare_vae and name.split(".", 1)[0] in _VAE_MODULES:
        return f"{VAE_PREFIX}{name}"
    if name.startswith("diffusion_model."):
        return f"model.{name}"
    if name.startswith("vae."):
        return f"{VAE_PREFIX}{name.removeprefix('vae.')}"
    for prefix in _CLIP_PREFIXES:
        rest = name.removeprefix(prefix)
        if rest != name and rest.startswith(_CLIP_MODULES):
            return f"{prefix}text_model.{rest}"
    return name


_UNET_MODULES = {"input_blocks", "middle_block", "output_blocks", "time_embed", "label_emb", "out"}
_VAE_MODULES = {"encoder", "decoder", "quant_conv", "post_quant_conv"}
