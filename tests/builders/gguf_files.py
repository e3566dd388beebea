"""GGUF files of the UNet of a tiny model, as ComfyUI-GGUF, stable-diffusion.cpp and diffusers name its tensors."""

from __future__ import annotations

from pathlib import Path

import torch

from modules.families.parts.single_file.models import UNET_PREFIX
from modules.families.parts.single_file.unet_layout import unet_slots
from tests.builders.pipelines import load_tiny
from trainer.benchmark.gguf_file import write_gguf


def write_unet(path: Path, model: Path, *, kind: str = "Q8_0", layout: str = "original") -> dict[str, torch.Tensor]:
    """Write the UNet of a model in a layout: "original", "prefixed" or "diffusers". Return its weights."""
    unet = load_tiny(model).parts["unet"].module
    state = {name: tensor.detach().clone() for name, tensor in unet.state_dict().items()}
    prefix = UNET_PREFIX if layout == "prefixed" else ""
    names = {s.key: f"{prefix}{s.original}" for s in unet_slots(dict(unet.config))}
    write_gguf(path, {n if layout == "diffusers" else names[n]: t for n, t in state.items()}, kind=kind)
    return state
