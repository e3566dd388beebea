"""GGUF files of the UNet of a tiny model, as ComfyUI-GGUF, stable-diffusion.cpp and diffusers name its tensors."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
from gguf import GGMLQuantizationType

from benchmarks.gguf_file import write_gguf
from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.unet_clip_file.layout import UNET_PREFIX
from modules.families.parts.unet_clip_file.unet import unet_slots
from modules.families.registry import FAMILIES, published_model
from modules.formats.gguf_header import block_type
from modules.memory.part_plan import PartPlan
from tests.builders.pipelines import load_tiny
from trainer.preflight.passes import passes_of


def write_unet(path: Path, model: Path, *, kind: str = "Q8_0", layout: str = "original") -> dict[str, torch.Tensor]:
    """Write the UNet of a model in a layout: "original", "prefixed" or "diffusers". Return its weights."""
    unet = load_tiny(model).parts["unet"].module
    state = {name: tensor.detach().clone() for name, tensor in unet.state_dict().items()}
    prefix = UNET_PREFIX if layout == "prefixed" else ""
    names = {s.key: f"{prefix}{s.original}" for s in unet_slots(dict(unet.config))}
    write_gguf(path, {n if layout == "diffusers" else names[n]: t for n, t in state.items()}, kind=kind)
    return state


def write_hollow_unet(path: Path, model: str, *, kind: str = "Q4_K", in_channels: int = 4) -> None:
    """Write the UNet of a published model as ComfyUI-GGUF does, with a hole for its bytes: no work, whatever its size.

    Weights of two and more axes are in blocks, flattened where their rows are no whole number of blocks.
    """
    spec = FAMILIES[published_model(model).family]
    configs = shipped_configs(model)
    configs["unet"]["in_channels"] = in_channels
    shapes = passes_of(spec, configs).weights("unet", PartPlan()).shapes
    number = GGMLQuantizationType[kind].value
    packed = block_type(number)
    assert packed is not None
    entries, pairs, offset = b"", b"", 0
    num_pairs = 0
    for slot in unet_slots(configs["unet"]):
        shape = shapes[slot.key]
        size, is_packed = math.prod(shape), len(shape) > 1 and math.prod(shape) % packed.block == 0
        stored = shape
        if is_packed and shape[-1] % packed.block:
            key = _text(f"comfy.gguf.orig_shape.{slot.original}")
            pairs += key + struct.pack(f"<IIQ{len(shape)}i", 9, 5, len(shape), *shape)
            num_pairs += 1
            stored = (size // packed.block, packed.block)
        reverse = stored[::-1]
        entries += _text(slot.original) + struct.pack(f"<I{len(reverse)}Q", len(reverse), *reverse)
        entries += struct.pack("<IQ", number if is_packed else 0, offset)
        offset += size // packed.block * packed.num_bytes if is_packed else size * 4
        offset += -offset % 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), num_pairs) + pairs + entries
    header += b"\x00" * (-len(header) % 32)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + offset)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()
