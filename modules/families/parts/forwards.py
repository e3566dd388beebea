"""The forward pass of each part of a model: plain at first, checkpointed after `set_memory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from torch import nn
from transformers.models.clip.modeling_clip import CLIPEncoderLayer

from modules.families.protocol import Part, PartMemory
from modules.families.spec import Role
from modules.memory.checkpointing import create_checkpointed_forward
from modules.system.devices import Device

BlockTypes = Mapping[Role, tuple[type[nn.Module], ...]]

BLOCK_TYPES: BlockTypes = {
    "denoiser": (BasicTransformerBlock, ResnetBlock2D),
    "text_encoder": (CLIPEncoderLayer,),
    "vae": (ResnetBlock2D, Attention),
}
TRANSFORMER_TYPES: BlockTypes = {
    "denoiser": (BasicTransformerBlock,),
    "text_encoder": (CLIPEncoderLayer,),
    "vae": (Attention,),
}
# A VAE's encoder and decoder never run as one pass. Encoding needs no gradient.
_ENTRIES: Mapping[Role, str] = {"denoiser": "forward", "text_encoder": "forward", "vae": "decode"}


class Forwards:
    """Provides the callable that runs each part."""

    def __init__(self, block_types: BlockTypes = BLOCK_TYPES) -> None:
        """`block_types` are the module classes that are checkpointed one by one, by the role of their part."""
        self._block_types = block_types
        self._checkpointed: dict[str, Callable[..., Any]] = {}

    def set_memory(
        self, parts: Mapping[str, Part], memory: Mapping[str, PartMemory], *, train_device: Device, temp_device: Device
    ) -> None:
        """Set up the checkpointed forward of the parts in `memory`; other parts run without checkpointing."""
        for name, part in parts.items():
            wanted = memory.get(name, PartMemory())
            self._checkpointed[name] = create_checkpointed_forward(
                part.module,
                train_device=train_device,
                temp_device=temp_device,
                mode=wanted.mode,
                block_types=self._block_types[part.spec.role],
                transformer_types=TRANSFORMER_TYPES[part.spec.role],
                chosen_blocks=wanted.chosen_blocks,
                offload_activations=wanted.offload_activations,
                offload_fraction=wanted.offload_fraction,
                entry=_ENTRIES[part.spec.role],
                compilation=wanted.compilation,
                resident=[p for n, p in part.module.named_parameters() if n in wanted.resident],
            )

    def of(self, name: str, module: nn.Module) -> Callable[..., Any]:
        """Return the callable that runs a part."""
        return self._checkpointed.get(name, module)
