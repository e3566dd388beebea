"""Names and conversions that several topics of OneTrainer's config share: dtypes, layer presets, periods of time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from modules.config.migrations.tree_moves import Notes, Tree, choose, move, number, put, source_of
from modules.system.problem import Problem, quote

DTYPES: Mapping[str, str] = {
    "FLOAT_32": "float32",
    "FLOAT_16": "float16",
    "BFLOAT_16": "bfloat16",
    "TFLOAT_32": "tfloat32",
}
OUTPUT_DTYPES: Mapping[str, str] = {**DTYPES, "TFLOAT_32": "float32", "FLOAT_8": "float8"}
# TF32 is a compute mode, not a weight dtype. The COMPRESSED formats are the same, packed.
WEIGHT_DTYPES: Mapping[str, str] = {
    **DTYPES,
    "TFLOAT_32": "float32",
    "FLOAT_8": "float8",
    "INT_8": "int8",
    "NFLOAT_4": "nfloat4",
    "FLOAT_W8A8": "float8_w8a8",
    "INT_W8A8": "int8_w8a8",
    "FLOAT_W8A8_COMPRESSED": "float8_w8a8",
    "INT_W8A8_COMPRESSED": "int8_w8a8",
    "GGUF": "gguf",
    "GGUF_A8_FLOAT": "gguf_a8_float",
    "GGUF_A8_INT": "gguf_a8_int",
}
LAYERS: Mapping[str, str] = {
    "attn-mlp": "attention_mlp",
    "attn-only": "attention",
    "full": "all",
    "custom": "custom",
}
# Presets with their filters that are ours in all models that have them. FLUX.1's "attn,ff.net" is less than ours.
_SAME_LAYERS = {("attn-mlp", "attentions"), ("attn-only", "attn")}
# Our families, by what is special about them in OneTrainer.
FLUX2 = ("flux2", "flux2_klein")
VIDEO = "hunyuan_video"
WITH_SHIFT_OF_FLUX = ("z_image", "ernie_image")  # with a dynamic shift in OneTrainer alone
WITH_TWO_CLIPS = ("sdxl", "sd3")
WITH_T5_LAST = ("sd3", "hidream")  # T5 is their third text encoder

_NEVER_EPOCHS = 10_000  # OneTrainer's first way to say that a part is trained to the end
_UNITS = {"EPOCH": "epoch", "STEP": "step", "SECOND": "second", "MINUTE": "minute", "HOUR": "hour"}


def move_all(rest: Tree, result: Tree, places: Mapping[str, str]) -> None:
    """Move each value that is present to its path of the result."""
    for source, path in places.items():
        move(rest, result, source, path)


def choose_layers(rest: Tree, result: Tree, paths: tuple[str, str, str], notes: Notes, *, where: str = "") -> None:
    """Move a layer filter to three paths of the result: the preset, the layer names, and the regex switch.

    Notes point to `where`, or to the first of the paths. OneTrainer's preset is a name for a filter that the file
    contains, too, and it trains what the filter names: that is used as a custom one, unless our preset is the same.
    """
    preset, names = rest.get("layer_filter_preset"), rest.get("layer_filter")
    has_names = isinstance(names, str) and bool(names.strip(" ,"))
    if has_names and isinstance(preset, str | None) and preset != "full" and (preset, names) not in _SAME_LAYERS:
        rest["layer_filter_preset"] = "custom"
    choose(rest, result, "layer_filter_preset", paths[0], LAYERS, notes, where=where)
    move_all(rest, result, {"layer_filter": paths[1], "layer_filter_regex": paths[2]})


def every(rest: Tree, key: str, steps_per_update: int, default: tuple[float, str], notes: Notes, where: str) -> Tree:
    """Pop a number and its unit and return our period. Their step is a batch, ours is an optimizer step."""
    unit_key = f"{key}_unit"
    names = {name: source_of(rest, name) or name for name in (key, unit_key)}
    given, unit = rest.pop(key, default[0]), rest.pop(unit_key, default[1])
    n = number(given)
    if unit == "ALWAYS":
        return {"n": 1, "unit": "step"}
    if unit == "NEVER" or (given is None and key == "stop_training_after"):
        return {"unit": "never"}
    if n is None or not isinstance(unit, str) or unit not in _UNITS:
        wrong = f"{names[key]} = {quote(given)}" if n is None else f"{names[unit_key]} = {quote(unit)}"
        message = f"{wrong} is not a valid period; {default[0]} {default[1]} is used instead."
        notes.append(Problem(where, message, "warning"))
        n, unit = default
    if n <= 0 or unit == "NEVER" or (unit == "EPOCH" and n >= _NEVER_EPOCHS and key == "stop_training_after"):
        return {"unit": "never"}
    result = period(n, unit, steps_per_update)
    if unit == "STEP" and steps_per_update > 1:
        message = f"{n:g} steps were converted to {result['n']:g}: a step is an optimizer step here, not a batch."
        notes.append(Problem(where, message, "info"))
    return result


def period(n: float, unit: str, steps_per_update: int) -> Tree:
    """Return our period for their number and unit."""
    if unit == "STEP":
        n = math.ceil(n / steps_per_update)
    return {"n": n, "unit": _UNITS[unit]}


def resolution_of(given: object) -> tuple[list[float | str], bool]:
    """Return the resolutions, numbers or sizes such as "1024x768", and whether all of what was given is valid.

    OneTrainer writes "512", "512, 768" or one fixed "1024x768"; numbers and lists, also mixed ones, are accepted, too.
    """
    values = given.strip(" ,").split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
    resolutions: list[float | str] = []
    for value in values:
        match = re.fullmatch(r"\s*(\d{1,5})\s*[xX]\s*(\d{1,5})\s*", value) if isinstance(value, str) else None
        side = number(value)
        if match:
            resolutions.append(f"{int(match[1])}x{int(match[2])}")
        elif side is not None:
            resolutions.append(side)
    return resolutions, bool(values) and len(resolutions) == len(values)


def family_of(result: Tree) -> str:
    """Return our name of the result's family."""
    return str(result["model"]["family"])


def remember(result: Tree, path: str, name: str, fields: Tree) -> None:
    """Remember the settings of a variant that is not selected."""
    if fields:
        put(result, "remembered", {**result.get("remembered", {})})
        result["remembered"].setdefault(path, {})[name] = fields
