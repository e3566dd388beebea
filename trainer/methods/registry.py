"""The training methods, one line each: a config's name to the function that builds the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from modules.config.sections.training import Training
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import TrainingMethod

METHODS: Mapping[str, Callable[[Training], TrainingMethod]] = {
    "denoise": lambda training: Denoise(training.loss.weighting, training.loss.gamma),
}


def build_method(training: Training) -> TrainingMethod:
    """Return the method that a config's training section asks for."""
    return METHODS[training.method.name](training)
