"""OneTrainer's concepts (version 2) and samples (version 0), one entry at a time.

Each takes what it understands out of the entry it is given; what is left there is kept by the caller.
"""

from __future__ import annotations

from typing import Any

from modules.config.problem import Problem, shown

Tree = dict[str, Any]

_KINDS = {"STANDARD": "training", "VALIDATION": "validation"}
_CAPTION_SOURCES = {"sample": "text_file", "filename": "file_name"}
_SAMPLERS = {
    "DDIM": "ddim",
    "EULER": "euler",
    "EULER_A": "euler_a",
    "EULER_KARRAS": "euler_karras",
    "DPMPP": "dpmpp",
    "DPMPP_KARRAS": "dpmpp_karras",
    "UNIPC": "unipc",
}
_AUGMENTATIONS = (
    "enable_random_flip",
    "enable_fixed_flip",
    "enable_random_rotate",
    "enable_fixed_rotate",
    "enable_random_brightness",
    "enable_fixed_brightness",
    "enable_random_contrast",
    "enable_fixed_contrast",
    "enable_random_saturation",
    "enable_fixed_saturation",
    "enable_random_hue",
    "enable_fixed_hue",
    "enable_resolution_override",
)
_CAPTION_CHANGES = ("enable_tag_shuffling", "tag_dropout_enable", "caps_randomize_enable")


def concept_from(given: Tree, notes: list[Problem], where: str) -> Tree:
    """Return our concept for one of OneTrainer's; names what it asked for that has no effect yet."""
    kind = given.pop("type", "VALIDATION" if given.pop("validation_concept", False) else "STANDARD")
    text, image = _section(given, "text"), _section(given, "image")
    source = text.get("prompt_source", "sample")
    unsupported = [name for name in _AUGMENTATIONS if image.get(name)]
    unsupported += [name for name in _CAPTION_CHANGES if text.get(name)]
    if given.get("balancing_strategy", "REPEATS") != "REPEATS":
        unsupported.append("balancing_strategy SAMPLES")
    if not _is_key(kind, _KINDS):
        unsupported.append(f"type {_plain(kind)}")
    if not _is_key(source, _CAPTION_SOURCES):
        unsupported.append(f"prompt_source {_plain(source)}")
    if unsupported:
        notes.append(Problem(where, f"Not supported yet, and without effect: {', '.join(unsupported)}.", "warning"))
    repeats = given.pop("repeats", 1.0)
    return {
        "name": given.pop("name", ""),
        "path": given.pop("path", ""),
        "enabled": bool(given.pop("enabled", True)) and _is_key(kind, _KINDS),
        "kind": _KINDS[kind] if _is_key(kind, _KINDS) else "training",
        "include_subfolders": given.pop("include_subdirectories", False),
        "caption_source": _CAPTION_SOURCES[source] if _is_key(source, _CAPTION_SOURCES) else "text_file",
        "repeats": given.pop("balancing", repeats),
        "loss_weight": given.pop("loss_weight", 1.0),
    }


def sample_from(given: Tree, notes: list[Problem], where: str) -> Tree:
    """Return our sample prompt for one of OneTrainer's."""
    sampler = given.pop("noise_scheduler", "EULER_A")
    if not _is_key(sampler, _SAMPLERS):
        notes.append(
            Problem(
                f"{where}.sampler",
                f"The sampler {_plain(sampler)} is not supported yet; DDIM stands instead.",
                "warning",
            )
        )
    if given.pop("random_seed", False):
        notes.append(Problem(f"{where}.seed", "Samples always use their fixed seed here.", "info"))
    return {
        "enabled": given.pop("enabled", True),
        "prompt": given.pop("prompt", ""),
        "negative_prompt": given.pop("negative_prompt", ""),
        "width_px": given.pop("width", 512),
        "height_px": given.pop("height", 512),
        "seed": given.pop("seed", 42),
        "steps": given.pop("diffusion_steps", 30),
        "guidance": given.pop("cfg_scale", 7.5),
        "sampler": _SAMPLERS[sampler] if _is_key(sampler, _SAMPLERS) else "ddim",
    }


def _section(given: Tree, key: str) -> Tree:
    section = given.get(key)
    return section if isinstance(section, dict) else {}


def _is_key(value: object, names: dict[str, str]) -> bool:
    return isinstance(value, str) and value in names


def _plain(value: object) -> str:
    return value if isinstance(value, str) and len(value) < 40 else shown(value)
