"""OneTrainer's config version 10 to 11: checkpointing and offloading move into the parts, formats are renamed."""

from __future__ import annotations

import re

from modules.config.migrations.onetrainer_08_to_09 import parts_of
from modules.config.migrations.onetrainer_keys import PARTS
from modules.config.migrations.tree_moves import Notes, Tree, rename
from modules.system.problem import Problem, shown

_OLD_KEYS = ("gradient_checkpointing", "enable_activation_offloading", "layer_offload_fraction")
_METHODS = ("ON", "OFF", "CPU_OFFLOADED")


def to_11(tree: Tree, notes: Notes) -> Tree:
    """Return the tree at OneTrainer's version 11.

    In version 10 one `gradient_checkpointing` ("OFF", "ON", "CPU_OFFLOADED"; missing means "ON") applied to all parts,
    and the output format SAFETENSORS meant several formats that now have their own names. For two days in July 2026 the
    old keys were written into version 11; this step also applies to those files.
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
        message = f"gradient_checkpointing = {shown(method)} is not one of {', '.join(_METHODS)}; ON is used instead."
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
                **part,  # keys of the part itself are of version 11
            }


def _format(tree: Tree, notes: Notes) -> None:
    if tree.get("output_model_format") == "CKPT":
        tree["output_model_format"] = "SAFETENSORS"
        destination = tree.get("output_model_destination")
        if isinstance(destination, str):
            tree["output_model_destination"] = re.sub(r"\.ckpt$", ".safetensors", destination, flags=re.IGNORECASE)
        message = "The format CKPT can run code when loaded and is no longer written; safetensors is used instead."
        notes.append(Problem("output.destination", message, "info"))
    if tree.get("output_model_format") == "SAFETENSORS":
        match tree.get("training_method"):
            case "LORA":
                tree["output_model_format"] = "LEGACY_LORA"
            case "EMBEDDING":
                pass
            case _:
                tree["output_model_format"] = "LEGACY_SAFETENSORS"
