"""What the parts and layers of SD 1.x are called in LoRA files.

kohya form (read by ComfyUI, A1111, Forge, diffusers): a prefix per part, and the diffusers path with underscores.
Text layers carry "text_model" whether or not the installed transformers still has that inner module.
diffusers/PEFT form: the part's name and the dotted path.
"""

from __future__ import annotations

from modules.families.spec import LoraNaming

KOHYA_PREFIXES = {"unet": "lora_unet", "text_encoder": "lora_te"}


def kohya_name(part: str, path: str) -> str:
    """Return the kohya name of a layer: `lora_unet_down_blocks_0_attentions_0_proj_in`."""
    return f"{KOHYA_PREFIXES[part]}_{full_path(part, path).replace('.', '_')}"


def peft_name(part: str, path: str) -> str:
    """Return the PEFT name of a layer: `text_encoder.text_model.encoder.layers.0.mlp.fc1`."""
    return f"{part}.{full_path(part, path)}"


def full_path(part: str, path: str) -> str:
    """Return a layer's path with the "text_model." that transformers dropped in 5.6 put back."""
    if part == "text_encoder" and not path.startswith("text_model."):
        return f"text_model.{path}"
    return path


LORA_NAMING = LoraNaming(kohya_name, peft_name, base_version="sd_v1", architecture="stable-diffusion-v1")
