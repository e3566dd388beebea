"""The tensors of FLUX.2's VAE: those of an `AutoencoderKL`, and the statistics of the latents' patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.families.parts.single_file import autoencoder
from modules.families.parts.single_file.slots import Slot

_STATISTICS = ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked")


def vae_slots(config: Mapping[str, Any]) -> tuple[Slot, ...]:
    """Return the slots of an `AutoencoderKLFlux2` of this config in the original layout."""
    return (*autoencoder.vae_slots(config), *(Slot(name, name) for name in _STATISTICS))
