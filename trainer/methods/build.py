"""From a config's method to what trains by it: the factory that its record names."""

from __future__ import annotations

from modules.config.sections.training import Training
from modules.objectives.registry import METHODS
from modules.rewards.composite import CompositeReward
from modules.system.factories import load_factory
from trainer.methods.protocol import TrainingMethod


def build_method(training: Training, reward: CompositeReward | None) -> TrainingMethod:
    """Return the method that a training section names; `reward` is what reward methods train on."""
    settings = training.method
    method: TrainingMethod = load_factory(METHODS[settings.name].factory)(settings, training, reward)
    return method
