"""The VAE of HunyuanImage 2.1 in the original layout, which its own files and those for ComfyUI have.

Source: diffusers' scripts/convert_hunyuan_image_to_diffusers.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diffusers import AutoencoderKLHunyuanImage

from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.slots import Slot

_IN_MIDDLE = {
    "mid_block.resnets.0": "mid.block_1",
    "mid_block.resnets.1": "mid.block_2",
    "mid_block.attentions.0.to_q": "mid.attn_1.q",
    "mid_block.attentions.0.to_k": "mid.attn_1.k",
    "mid_block.attentions.0.to_v": "mid.attn_1.v",
    "mid_block.attentions.0.proj": "mid.attn_1.proj_out",
    "mid_block.attentions.0.norm": "mid.attn_1.norm",
}
_CODERS = (("encoder", "down", "downsample", 0), ("decoder", "up", "upsample", 1))


def vae_slots(config: Mapping[str, Any]) -> tuple[Slot, ...]:
    """Return the slots of an `AutoencoderKLHunyuanImage` of this config in the original layout."""
    names = dict(_block_names(config))
    return tuple(Slot(key, _original(key, names)) for key in empty_part(AutoencoderKLHunyuanImage, config).state_dict())


def _block_names(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the paths of blocks and of what is in the middle: diffusers numbers the blocks of all levels in turn."""
    num_levels, num_samplings = len(config["block_out_channels"]), int(config["spatial_compression_ratio"]).bit_length()
    for coder, direction, sampling, more in _CODERS:
        yield from ((f"{coder}.{ours}", f"{coder}.{theirs}") for ours, theirs in _IN_MIDDLE.items())
        index = 0
        for level in range(num_levels):
            for block in range(int(config["layers_per_block"]) + more):
                yield f"{coder}.{direction}_blocks.{index}", f"{coder}.{direction}.{level}.block.{block}"
                index += 1
            if level < min(num_levels, num_samplings) - 1:
                yield f"{coder}.{direction}_blocks.{index}", f"{coder}.{direction}.{level}.{sampling}"
                index += 1


def _original(key: str, names: Mapping[str, str]) -> str:
    """Return the original name of a tensor: the name of its block, or of a layer in the middle, and the rest."""
    steps = key.split(".")
    starts = (".".join(steps[:count]) for count in (4, 3))
    start = next((s for s in (".".join(steps[:5]), *starts) if s in names), None)
    return key if start is None else f"{names[start]}{key.removeprefix(start)}"
