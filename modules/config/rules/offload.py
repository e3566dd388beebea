"""Layer offloading: where it works, and where it has an effect."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.families.spec import PartSpec
from modules.optim.registry import MEMORY_SAVER, optimizer_spec
from modules.system.problem import Problem


def offloaded_layers(config: Config) -> Iterator[Problem]:
    """Yield problems with offloaded layers: they need per-block checkpointing, and an optimizer for the device."""
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
        if is_trained and config.training.trains == "full":
            yield from _optimizer(config, part)
        if _device(config.general.temp_device) == _device(config.general.train_device):
            yield Problem(
                f"parts.{part.name}.offload_fraction",
                f"Layers of {part.label} are set to be offloaded, but the offload device is the training device.",
                "warning",
                "Choose another offload device, usually cpu, or set the layer offload fraction to 0.",
            )


def _optimizer(config: Config, part: PartSpec) -> Iterator[Problem]:
    """Yield an error if the optimizer needs a GPU but the offloaded weights are updated on the CPU."""
    spec = optimizer_spec(config.training.optimizer)
    if spec.needs_gpu and _device(config.general.temp_device) == "cpu":
        yield Problem(
            f"parts.{part.name}.offload_fraction",
            f"Offloaded layers of {part.label} are updated on the CPU, which {spec.label} does not support.",
            advice=f"Choose another optimizer, such as {MEMORY_SAVER.label}, or set the layer offload fraction to 0.",
        )


def _device(name: str) -> str:
    return name.strip().lower()
