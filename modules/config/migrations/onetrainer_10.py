"""OneTrainer's config version 10 to 11: checkpointing and offloading move into the parts, formats are renamed."""

from __future__ import annotations

from typing import Any

from modules.config.problem import Problem

_PARTS = ("unet", "text_encoder", "text_encoder_2", "vae")
_IN_EVERY_MODEL = ("unet", "text_encoder")
_OLD_KEYS = (
    "gradient_checkpointing",
    "enable_activation_offloading",
    "layer_offload_fraction",
    "enable_async_offloading",
)


def is_of_10(tree: dict[str, Any]) -> bool:
    """Return whether a tree that says 11, or nothing, has keys of version 10.

    Presets carry no version, and for two days in July 2026 OneTrainer wrote the old keys into version 11.
    """
    return any(key in tree for key in _OLD_KEYS) or (
        tree.get("output_model_format") == "SAFETENSORS" and tree.get("training_method") != "EMBEDDING"
    )


def to_11(tree: dict[str, Any], notes: list[Problem]) -> dict[str, Any]:
    """Return the tree as OneTrainer's version 11 would hold it.

    In version 10 one `gradient_checkpointing` ("OFF", "ON", "CPU_OFFLOADED"; absent means "ON") spoke for all
    parts, and the output format SAFETENSORS stood for what is now named by what it holds.
    """
    result = dict(tree)
    has_old_keys = any(key in tree for key in _OLD_KEYS)
    method = result.pop("gradient_checkpointing", "ON")
    is_offloaded = method == "CPU_OFFLOADED"
    fraction = result.pop("layer_offload_fraction", 0.0)
    offloads_activations = result.pop("enable_activation_offloading", True)
    if has_old_keys:
        result["async_offloading"] = result.pop("enable_async_offloading", True)
        for name in _PARTS:
            if isinstance(part := result.get(name, {} if name in _IN_EVERY_MODEL else None), dict):
                result[name] = {
                    **part,
                    "gradient_checkpointing": method not in ("OFF", False),
                    "activation_offloading": bool(is_offloaded and offloads_activations),
                    "offload_fraction": fraction if is_offloaded else 0.0,
                }
    if result.get("output_model_format") == "SAFETENSORS":
        match result.get("training_method"):
            case "LORA":
                result["output_model_format"] = "LEGACY_LORA"
            case "EMBEDDING":
                pass
            case _:
                result["output_model_format"] = "LEGACY_SAFETENSORS"
    result["__version"] = 11
    return result
