"""Our version 3 to version 4: the settings that only some families have move to the family.

`model.family` was a name, with the settings of all families next to it. Only places changed, and the name of the UNet's
file: every value has the same meaning as before. Entries of the load report get the new paths.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modules.config.migrations.tree_moves import Notes, Tree

_FAMILY = "model.family"
_OF_FAMILY = ("prediction_type", "zero_terminal_snr", "clip_skip", "prompt_weighting")
_SECOND = "clip_skip_2"  # only Stable Diffusion XL has a second text encoder
_NEW_PATHS = {
    **{f"model.{name}": f"{_FAMILY}.{name}" for name in (*_OF_FAMILY, _SECOND)},
    "model.unet_file": "model.denoiser_file",
}


def to_darkroom_4(tree: Tree, notes: Notes) -> Tree:
    """Return a tree of our version 3 with each family's settings in the family; paths in `notes` are renamed in place.

    A second clip skip of another family is remembered for SDXL. A key that has its new place takes precedence.
    """
    notes[:] = [replace(note, path=_NEW_PATHS.get(note.path, note.path)) for note in notes]
    model = tree.get("model")
    if not isinstance(model, dict):
        return tree
    model = dict(model)
    if "unet_file" in model:
        model = {"denoiser_file": model.pop("unet_file"), **model}
    moved = {name: model.pop(name) for name in _OF_FAMILY if name in model}
    second = {_SECOND: model.pop(_SECOND)} if _SECOND in model else {}
    family = model.get("family", {"name": "sd"})
    is_sdxl = family == "sdxl" or (isinstance(family, dict) and family.get("name") == "sdxl")
    if is_sdxl:
        moved |= second
    if moved or "family" in model:
        model["family"] = _with_settings(family, moved)
    result = {**tree, "model": model}
    return result if is_sdxl or not second else _remembered_for_sdxl(result, second)


def _with_settings(family: object, moved: Tree) -> object:
    """Return the family as an object with the moved settings; anything but a name or an object is left as it is."""
    if isinstance(family, str):
        return {"name": family, **moved}
    return {**moved, **family} if isinstance(family, dict) else family


def _remembered_for_sdxl(tree: Tree, second: Tree) -> Tree:
    remembered: Any = tree.get("remembered", {})
    families: Any = remembered.get(_FAMILY, {}) if isinstance(remembered, dict) else None
    if not isinstance(families, dict) or second[_SECOND] is None:
        return tree
    of_sdxl: Any = families.get("sdxl", {})
    kept = {**second, **of_sdxl} if isinstance(of_sdxl, dict) else second
    return {**tree, "remembered": {**remembered, _FAMILY: {**families, "sdxl": kept}}}
