"""OneTrainer's config version 10 to 11: checkpointing and offloading move into the parts, formats are renamed."""

from __future__ import annotations

import re

from modules.config.migrations.onetrainer_08_to_09 import parts_of
from modules.config.migrations.onetrainer_keys import PARTS
from modules.config.migrations.taking import Notes, Tree, rename
from modules.system.problem import Problem, shown

_OLD_KEYS = ("gradient_checkpointing", "enable_activation_offloading", "layer_offload_fraction")
_METHODS = ("ON", "OFF", "CPU_OFFLOADED")


def to_11(tree: Tree, notes: Notes) -> Tree:
    """Return the tree as OneTrainer's version 11 would hold it.

    In version 10 one `gradient_checkpointing` ("OFF", "ON", "CPU_OFFLOADED"; absent means "ON") spoke for all
    parts, and the output format SAFETENSORS stood for what is now named by what it holds. For two days in July 2026
    the old keys were written into version 11: the step holds for those too.
    """
    result = dict(tree)
    _into_parts(result, notes)
    rename(result, "enable_async_offloading", "async_offloading")
    _format(result, notes)
    result["__version"] = 11
    return result


def _into_parts(tree: Tree, notes: Notes) -> None:
    if not any(key in tree for key in _OLD_KEYS):
        return
    method = tree.pop("gradient_checkpointing", "ON")
    offloads_activations = tree.pop("enable_activation_offloading", True)
    fraction = tree.pop("layer_offload_fraction", 0.0)
    if isinstance(method, bool):
        method = "ON" if method else "OFF"
    if not (isinstance(method, str) and method in _METHODS):
        message = f"gradient_checkpointing = {shown(method)} is none of {', '.join(_METHODS)}; ON stands instead."
        notes.append(Problem("parts", message, "warning"))
        method = "ON"
    is_offloaded = method == "CPU_OFFLOADED"
    for name in PARTS:
        part = tree.get(name, {} if name in parts_of(tree) else None)
        if isinstance(part, dict):
            tree[name] = {
                "gradient_checkpointing": method != "OFF",
                "activation_offloading": bool(is_offloaded and offloads_activations),
                "offload_fraction": fraction if is_offloaded else 0.0,
                **part,  # what a part says itself is of version 11
            }


def _format(tree: Tree, notes: Notes) -> None:
    if tree.get("output_model_format") == "CKPT":
        tree["output_model_format"] = "SAFETENSORS"
        destination = tree.get("output_model_destination")
        if isinstance(destination, str):
            tree["output_model_destination"] = re.sub(r"\.ckpt$", ".safetensors", destination, flags=re.IGNORECASE)
        message = "The format CKPT can run code when it is loaded and is no longer written; safetensors stands instead."
        notes.append(Problem("output.destination", message, "info"))
    if tree.get("output_model_format") == "SAFETENSORS":
        match tree.get("training_method"):
            case "LORA":
                tree["output_model_format"] = "LEGACY_LORA"
            case "EMBEDDING":
                pass
            case _:
                tree["output_model_format"] = "LEGACY_SAFETENSORS"
