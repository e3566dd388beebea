"""Building the training method of a config by the factory that its record names."""

from __future__ import annotations

from modules.config.sections.training import Training
from modules.objectives.registry import METHODS
from modules.rewards.composite import CompositeReward
from modules.system.factories import load_factory
from trainer.methods.protocol import TrainingMethod


def build_method(training: Training, reward: CompositeReward | None) -> TrainingMethod:
    """Return the method of a training section; `reward` is the reward that reward methods train on."""
    settings = training.method
    method: TrainingMethod = load_factory(METHODS[settings.name].factory)(settings, training, reward)
    return method
