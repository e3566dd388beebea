"""The forward pass of each part of a model: plain at first, checkpointed after `set_memory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from modules.families.model_class import ModelClass
from modules.families.protocol import Part, PartMemory
from modules.families.spec import Role
from modules.memory.checkpointing import create_checkpointed_forward
from modules.system.devices import Device
from modules.system.factories import load_factory

# A VAE's encoder and decoder never run as one pass. Encoding needs no gradient.
_ENTRIES: Mapping[Role, str] = {
    "denoiser": "forward",
    "guidance": "forward",
    "text_encoder": "forward",
    "vae": "decode",
}


def block_types(model: ModelClass) -> tuple[type[nn.Module], ...]:
    """Return the classes of a part's blocks."""
    return (*transformer_types(model), *map(load_factory, model.other_blocks))


def transformer_types(model: ModelClass) -> tuple[type[nn.Module], ...]:
    """Return the classes of a part's transformer blocks."""
    return tuple(map(load_factory, model.transformer_blocks))


class Forwards:
    """Provides the callable that runs each part."""

    def __init__(self) -> None:
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
                block_types=block_types(part.spec.model),
                transformer_types=transformer_types(part.spec.model),
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
