"""Building the training method of a config by the factory that its record names."""

from __future__ import annotations

from modules.config.sections.training import Training, method_in_use
from modules.rewards.composite import CompositeReward
from modules.system.factories import load_factory
from trainer.methods.protocol import TrainingMethod


def build_method(training: Training, reward: CompositeReward | None) -> TrainingMethod:
    """Return the method of a training section; `reward` is the reward that reward methods train on."""
    spec, settings = method_in_use(training)
    method: TrainingMethod = load_factory(spec.factory)(settings, training, reward)
    return method
