"""How files contain the prior: diffusers' names, and those of the published single files.

They differ in the attention: queries, keys and values are one matrix there (PyTorch's `MultiheadAttention`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from modules.families.parts.single_file.detect import DENOISER_PREFIX, prefixed_names
from modules.families.parts.single_file.record import DenoiserFile, PartLayout
from modules.families.parts.single_file.slots import Slot, fused_slots, limited
from modules.formats.adapter_targets import AdapterTarget

Config = Mapping[str, Any]
PREFIX = "lora_prior_unet_"
"""OneTrainer's beginning of the names of layers, which ComfyUI reads."""
_PART = "prior"
_EXPANSION = 4
_QKV = ("to_q", "to_k", "to_v")


def prior_layers(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the layers of a prior with the shapes of their weights, but for the attention's projections."""
    channels = [int(n) for n in config["block_out_channels"]]
    text, width, sequence = (int(config[key]) for key in ("clip_text_in_channels", "conditioning_dim", "clip_seq"))
    pooled, image = int(config["clip_text_pooled_in_channels"]), int(config["clip_image_in_channels"])
    yield "clip_txt_pooled_mapper", (width * sequence, pooled)
    yield "clip_txt_mapper", (width, text)
    yield "clip_img_mapper", (width * sequence, image)
    patch = int(config["patch_size"]) ** 2
    yield "embedding.1", (channels[0], int(config["in_channels"]) * patch, 1, 1)
    for before, level in zip(channels, range(1, len(channels)), strict=False):
        yield f"down_downscalers.{level}.1.blocks.0", (channels[level], before, 1, 1)
        yield f"up_upscalers.{len(channels) - 1 - level}.1.blocks.1", (before, channels[level], 1, 1)
    for block, channel, kind, skipped in _blocks(config):
        yield from _block_layers(block, channel, kind, skipped, config)
    yield "clf.1", (int(config["out_channels"]) * patch, channels[0], 1, 1)


def attention_blocks(config: Config) -> Iterator[tuple[str, int]]:
    """Yield the path of each attention with its width."""
    yield from ((f"{block}.attention", channel) for block, channel, kind, _ in _blocks(config) if "Attn" in kind)


def _blocks(config: Config) -> Iterator[tuple[str, int, str, int]]:
    """Yield the path of each block, its width, its class, and the channels of the skip connection into it."""
    channels, kinds = [int(n) for n in config["block_out_channels"]], config["block_types_per_layer"]
    levels = len(channels)
    for level, channel in enumerate(channels):
        names = [kind for _ in range(int(config["down_num_layers_per_block"][level])) for kind in kinds[level]]
        for index, kind in enumerate(names):
            yield f"down_blocks.{level}.{index}", channel, kind, 0
    for place, level in enumerate(reversed(range(levels))):
        number = int(config["up_num_layers_per_block"][place])
        for index, kind in enumerate([kind for _ in range(number) for kind in kinds[level]]):
            skipped = channels[level] if place > 0 and index == 0 else 0
            yield f"up_blocks.{place}.{index}", channels[level], kind, skipped


def _block_layers(
    block: str, channel: int, kind: str, skipped: int, config: Config
) -> Iterator[tuple[str, tuple[int, ...]]]:
    if "Res" in kind:
        side = int(config["kernel_size"])
        yield f"{block}.depthwise", (channel, 1, side, side)
        yield f"{block}.channelwise.0", (_EXPANSION * channel, channel + skipped)
        yield f"{block}.channelwise.4", (channel, _EXPANSION * channel)
    elif "Timestep" in kind:
        for name in ("mapper", *(f"mapper_{name}" for name in config["timestep_conditioning_type"])):
            yield f"{block}.{name}", (2 * channel, int(config["timestep_ratio_embedding_dim"]))
    else:
        yield f"{block}.attention.to_out.0", (channel, channel)
        yield f"{block}.kv_mapper.1", (channel, int(config["conditioning_dim"]))


def _original(path: str) -> str:
    return path.replace(".attention.to_out.0", ".attention.attn.out_proj")


def _slots(config: Config) -> Iterator[Slot]:
    for path, _ in prior_layers(config):
        for end in ("weight", "bias"):
            yield Slot(f"{path}.{end}", f"{_original(path)}.{end}")
    for block, _, kind, _ in _blocks(config):
        if "Res" in kind:
            for name in ("gamma", "beta"):
                yield Slot(f"{block}.channelwise.2.{name}", f"{block}.channelwise.2.{name}")
    for path, _ in attention_blocks(config):
        for end in ("weight", "bias"):
            yield from fused_slots([f"{path}.{name}.{end}" for name in _QKV], f"{path}.attn.in_proj_{end}")


def prior_targets(config: Config) -> Iterator[AdapterTarget]:
    """Yield the layers that adapter files can change.

    The projections have names of their own in the original layout, too: ComfyUI divides the matrix. Raises ValueError
    for more layers than any model has.
    """
    for path, shape in limited(prior_layers(config)):
        if not path.endswith(".depthwise"):  # no adapter is for convolutions within groups
            yield _target(path, _original(path), shape)
    for path, width in limited(attention_blocks(config)):
        for name in _QKV:
            yield _target(f"{path}.{name}", f"{path}.attn.{name}", (width, width))


def _target(path: str, original: str, shape: tuple[int, ...]) -> AdapterTarget:
    return AdapterTarget(_PART, path, shape, {"diffusers": path, "original": original}, PREFIX, "original")


def _layout(config: Config) -> PartLayout:
    return PartLayout(_PART, DENOISER_PREFIX, tuple(limited(_slots(config))))


PRIOR_FILE = DenoiserFile(
    layout=_layout,
    original_names=partial(prefixed_names, mark="clip_txt_pooled_mapper."),
    marks=(".clip_txt_mapper.",),
    # Only attention has other names there, which is the third of three blocks in the models of both sizes.
    diffusers_marks=("down_blocks.0.2.attention.to_q.",),
    diffusers_prefixes=(f"{_PART}.", DENOISER_PREFIX, "diffusion_model."),
)
