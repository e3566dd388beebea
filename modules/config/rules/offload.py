"""What waits on the offload device: where that works, and where it does anything."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.families.spec import PartSpec
from modules.optim.registry import MEMORY_SAVER, optimizer_spec
from modules.system.problem import Problem


def offloaded_layers(config: Config) -> Iterator[Problem]:
    """Layers that wait: per-block checkpointing where a gradient passes, and an optimizer for where they learn."""
    spec = FAMILIES[config.model.family]
    for part in spec.parts:
        settings = config.part(part.name)
        if settings.offload_fraction == 0:
            continue
        learns = part.trainable and settings.train
        # Text encoders that learn do so through the denoiser; what does not learn is otherwise run without gradients.
        if (learns or part.role == "denoiser") and settings.checkpointing != "block":
            yield Problem(
                f"parts.{part.name}.checkpointing",
                f"Layers of {part.label} are to wait on the offload device, but without gradient checkpointing per "
                "block all of them come and stay until the backward pass is over.",
                advice="Set its gradient checkpointing to per block, or its share of offloaded layers to 0.",
            )
        if learns and config.training.trains == "full":
            yield from _optimizer(config, part)
        if _device(config.general.temp_device) == _device(config.general.train_device):
            yield Problem(
                f"parts.{part.name}.offload_fraction",
                f"Layers of {part.label} are to wait on the offload device, which is the training device.",
                "warning",
                "Name another offload device, as a rule cpu, or set the share to 0.",
            )


def _optimizer(config: Config, part: PartSpec) -> Iterator[Problem]:
    """Yield an optimizer that only works on a GPU, where weights are to learn on the processor."""
    spec = optimizer_spec(config.training.optimizer)
    if spec.needs_gpu and _device(config.general.temp_device) == "cpu":
        yield Problem(
            f"parts.{part.name}.offload_fraction",
            f"Layers of {part.label} are to wait on the processor and learn there, which {spec.label} does not.",
            advice=f"Choose another optimizer, such as {MEMORY_SAVER.label}, or set the share to 0.",
        )


def _device(name: str) -> str:
    return name.strip().lower()
