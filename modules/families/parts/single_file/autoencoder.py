"""The tensors of a VAE (`AutoencoderKL`) in diffusers' and in the original layout, from its config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from modules.families.model_class import ModelClass
from modules.families.parts.single_file.record import PartLayout
from modules.families.parts.single_file.slots import Slot, limit_layers, module_slots
from modules.system.factories import load_factory

VAE_PREFIX = "first_stage_model."
_MODULES = {"encoder", "decoder", "quant_conv", "post_quant_conv", "conv1", "conv2", "bn"}
_VAE_RESNET = ("norm1", "conv1", "norm2", "conv2")
_ATTENTION = (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out"))
# The names before diffusers 0.12; folders of that age still have them.
OLD_ATTENTION_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def vae_slots(config: Mapping[str, Any]) -> tuple[Slot, ...]:
    """Return the slots of an `AutoencoderKL` of this config in the original layout."""
    ends = ("quant_conv", "post_quant_conv")
    return (
        *limit_layers(_encoder(config)),
        *limit_layers(_decoder(config)),
        *(s for name in ends if config.get(f"use_{name}", True) for s in module_slots(name, name)),
    )


def vae_slots_of(model: ModelClass, config: Mapping[str, Any]) -> tuple[Slot, ...]:
    """Return the slots of a VAE of any class in its original layout."""
    assert model.vae_file is not None, f"{model.reference} is no VAE"
    slots: tuple[Slot, ...] = load_factory(model.vae_file.slots)(config)
    return slots


def vae_layout(name: str, config: Mapping[str, Any]) -> PartLayout:
    """Return the layout of an `AutoencoderKL` of this config in a single file; `name` is the part's."""
    return PartLayout(name, VAE_PREFIX, vae_slots(config), is_unused=_is_unused)


def vae_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names of a file's tensors; the VAE's have the original layout's prefix:
    `{original: name in the file}`.
    """
    names = list(names)
    is_bare = any(n.startswith(("decoder.up.", "encoder.down.", "encoder.downsamples.")) for n in names)
    return {_outside_halves(_original(name, is_bare=is_bare)): name for name in names}


def _outside_halves(name: str) -> str:
    """Return a name without its half of the VAE, in which some files have the convolutions at the latents (FLUX.2)."""
    for half, end in (("encoder.", "quant_conv."), ("decoder.", "post_quant_conv.")):
        name = name.replace(f"{VAE_PREFIX}{half}{end}", f"{VAE_PREFIX}{end}")
    return name


def _original(name: str, *, is_bare: bool) -> str:
    if is_bare and name.split(".", 1)[0] in _MODULES:
        return f"{VAE_PREFIX}{name}"
    return f"{VAE_PREFIX}{name.removeprefix('vae.')}" if name.startswith("vae.") else name


def _is_unused(name: str) -> bool:
    return name.startswith((f"{VAE_PREFIX}loss.", f"{VAE_PREFIX}model_ema."))


def modern_key(key: str) -> str:
    """Return a VAE's key with the attention names of diffusers 0.12 and later."""
    path, _, parameter = key.rpartition(".")
    stem, _, name = path.rpartition(".")
    if ".attentions." in key and name in OLD_ATTENTION_NAMES:
        return f"{stem}.{OLD_ATTENTION_NAMES[name]}.{parameter}"
    return key


def _encoder(config: Mapping[str, Any]) -> Iterator[Slot]:
    channels = list(config["block_out_channels"])
    width = channels[0]
    yield from module_slots("encoder.conv_in", "encoder.conv_in")
    for level, wanted in enumerate(channels):
        for index in range(int(config["layers_per_block"])):
            path = f"encoder.down_blocks.{level}.resnets.{index}"
            yield from _vae_resnet(path, f"encoder.down.{level}.block.{index}", shortcut=width != wanted)
            width = wanted
        if level < len(channels) - 1:
            path = f"encoder.down_blocks.{level}.downsamplers.0.conv"
            yield from module_slots(path, f"encoder.down.{level}.downsample.conv")
    yield from _middle_and_end("encoder")


def _decoder(config: Mapping[str, Any]) -> Iterator[Slot]:
    channels = list(reversed(config["block_out_channels"]))
    width = channels[0]
    yield from module_slots("decoder.conv_in", "decoder.conv_in")
    for level, wanted in enumerate(channels):
        theirs = len(channels) - 1 - level
        for index in range(int(config["layers_per_block"]) + 1):
            path = f"decoder.up_blocks.{level}.resnets.{index}"
            yield from _vae_resnet(path, f"decoder.up.{theirs}.block.{index}", shortcut=width != wanted)
            width = wanted
        if level < len(channels) - 1:
            path = f"decoder.up_blocks.{level}.upsamplers.0.conv"
            yield from module_slots(path, f"decoder.up.{theirs}.upsample.conv")
    yield from _middle_and_end("decoder")


def _middle_and_end(half: str) -> Iterator[Slot]:
    middle = f"{half}.mid_block"
    yield from _vae_resnet(f"{middle}.resnets.0", f"{half}.mid.block_1", shortcut=False)
    yield from module_slots(f"{middle}.attentions.0.group_norm", f"{half}.mid.attn_1.norm")
    for ours, theirs in _ATTENTION:
        yield from module_slots(f"{middle}.attentions.0.{ours}", f"{half}.mid.attn_1.{theirs}", conv=True)
    yield from _vae_resnet(f"{middle}.resnets.1", f"{half}.mid.block_2", shortcut=False)
    yield from module_slots(f"{half}.conv_norm_out", f"{half}.norm_out")
    yield from module_slots(f"{half}.conv_out", f"{half}.conv_out")


def _vae_resnet(path: str, original: str, *, shortcut: bool) -> Iterator[Slot]:
    for name in _VAE_RESNET:
        yield from module_slots(f"{path}.{name}", f"{original}.{name}")
    if shortcut:
        yield from module_slots(f"{path}.conv_shortcut", f"{original}.nin_shortcut")
