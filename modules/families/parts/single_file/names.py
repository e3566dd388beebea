"""The names that files in practice use for the tensors of the original layout. Torch-free.

Older SD 1 files leave out "text_model.", some programs write "vae." for "first_stage_model.", a file with only a UNet
or a VAE may have no prefix, and training checkpoints contain EMA weights as `model_ema.` with all inner dots left out
(LDM's `LitEma`).
"""

from __future__ import annotations

from collections.abc import Iterable

from modules.families.parts.single_file.models import EMA_PREFIX, UNET_PREFIX, VAE_PREFIX
from modules.families.parts.single_file.record import PartLayout
from modules.families.parts.single_file.slots import missing_originals

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
