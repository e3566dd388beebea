"""Layer offloading: where it works, and where it has an effect."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.system.problem import Problem


def offloaded_layers(config: Config) -> Iterator[Problem]:
    """Yield problems with offloaded layers: they need per-block checkpointing, and another device."""
    spec = FAMILIES[config.model.family]
    for part in spec.parts:
        settings = config.part(part.name)
        if settings.offload_fraction == 0:
            continue
        is_trained = part.trainable and settings.train
        # Gradients pass through the denoiser to trained text encoders; other frozen parts run without gradients.
        if (is_trained or part.role == "denoiser") and settings.checkpointing != "block":
            yield Problem(
                f"parts.{part.name}.checkpointing",
                f"Layers of {part.label} are set to be offloaded, but without gradient checkpointing per block all of "
                "them stay on the training device until the backward pass ends.",
                advice="Set its gradient checkpointing to per block, or its layer offload fraction to 0.",
            )
        if _device(config.general.temp_device) == _device(config.general.train_device):
            yield Problem(
                f"parts.{part.name}.offload_fraction",
                f"Layers of {part.label} are set to be offloaded, but the offload device is the training device.",
                "warning",
                "Choose another offload device, usually cpu, or set the layer offload fraction to 0.",
            )


def _device(name: str) -> str:
    return name.strip().lower()
