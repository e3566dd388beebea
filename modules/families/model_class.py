"""The class of a part of a model, torch-free: the facts about its layers, and how published files contain it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modules.settings.layer_filter import LayerPresets

if TYPE_CHECKING:  # of language models inside of others
    from modules.families.larger_model import LargerModel


@dataclass(frozen=True, slots=True)
class VaeFile:
    """How files contain a VAE alone, in the original layout and in diffusers'.

    `slots` names the function from a config to the slots of its tensors in the original layout
    (`modules.families.parts.single_file.slots`), as "module:function". `original` and `diffusers` begin names that
    every file of the layout has, without a prefix; `original_latents` and `diffusers_latents` are the weights of the
    layer whose input channels are the latents.
    """

    slots: str
    original: tuple[str, ...]
    diffusers: tuple[str, ...]
    original_latents: str = "decoder.conv_in.weight"
    diffusers_latents: str = "decoder.conv_in.weight"


@dataclass(frozen=True, slots=True)
class ModelClass:
    """The diffusers or transformers class of a part, as "module:Class", and the facts about its layers.

    Blocks, each a class as "module:Class", are checkpointed, offloaded, compiled and sharded one by one. The
    transformer blocks alone are what the checkpointing of transformer blocks recomputes.

    `attention` names the function that puts an implementation into the attention layers, as "module:name"
    (`modules.families.parts.attention_processor`); without it the class keeps its own. `layers` are the presets of
    layer filters, by name; `never_quantized` the steps of dotted names whose layers keep their weights, or with "^"
    before it a whole name.

    `usual_layers` is the preset that other trainers of the model use by default; if empty, the preset of its blocks, if
    there is one.

    `masks_padding`: its attention leaves out the padding of prompts that are shorter than others of their batch.

    `passes` names the function that returns the passes of a module of the class, "forward", or "encode" and "decode",
    with their inputs (`modules.families.parts.traced_passes`): the memory estimate traces them.

    `file_key` names the function from the key of a tensor in the module to the one in files, empty for a tensor that
    files do not have, as "module:function"; without it both are the same.

    `vae_file` states how files contain it alone, for a VAE. `library` is the package whose names configs and folders
    have, if the class is not in it but one of our own that derives from the package's.

    `inside` is the larger model that contains it in published folders and files; ours contain it alone.

    `fill_buffers` names the function that makes the buffers which files do not have, from a module whose buffers are on
    the meta device, as "module:function".

    `identity_if_missing` are the square matrices that files may lack: each is the identity then.

    `overflows_in_float16`: activations of the published weights do, so that no run may compute in it.

    `joins_weights`: its code joins tensors in the dtype of its weights with others, which autocast on a CPU refuses if
    its own dtype is the other 16-bit one.

    `is_large`: a text encoder about as large as a denoiser. A run that caches its outputs has it in memory only while
    it encodes.

    `longest_side` returns the longest side of latents for which a denoiser has positions, from its config; without it
    there is no limit.

    `channels_key` is the key in a denoiser's config that holds the channels of its input.

    `work` is the computation for each weight relative to a UNet of SD XL, for comparing step times: 3.5 for a
    transformer over all tokens of patches of 2 x 2 (two operations for each of 4,096 tokens at 1024 px, against 2,335).
    """

    reference: str
    transformer_blocks: tuple[str, ...]
    passes: str
    other_blocks: tuple[str, ...] = ()
    attention: str = ""
    layers: LayerPresets = field(default_factory=dict, hash=False)
    usual_layers: str = ""
    masks_padding: bool = False
    never_quantized: frozenset[str] = frozenset()
    file_key: str = ""
    vae_file: VaeFile | None = None
    library: str = ""
    inside: LargerModel | None = None
    fill_buffers: str = ""
    identity_if_missing: frozenset[str] = frozenset()
    overflows_in_float16: bool = False
    joins_weights: bool = False
    is_large: bool = False
    longest_side: Callable[[Mapping[str, Any]], int] | None = None
    channels_key: str = "in_channels"
    work: float = 1.0

    @property
    def has_backends(self) -> bool:
        """Whether its attention layers choose among diffusers' attention backends."""
        return self.attention.endswith(":set_backend")

    @property
    def layers_elsewhere(self) -> str:
        """The preset of layers that other trainers of the model use by default."""
        return self.usual_layers or ("blocks" if "blocks" in self.layers else "attention_mlp")

    def channels_in(self, config: Mapping[str, Any]) -> int:
        """Return the channels of a denoiser's input, from its config."""
        return int(config[self.channels_key])

    @property
    def language_prefix(self) -> str:
        """The beginning of the names of the language model's tensors in a module that also has a vision encoder."""
        return "language_model." if self.inside is not None and self.inside.vision_config else ""

    def own_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config of the class from one in a file, which may be the config of the larger model."""
        return config if self.inside is None or not isinstance(config, Mapping) else self.inside.own_config(config)
