"""Building the training method of a config by the factory that its record names."""

from __future__ import annotations

from modules.config.sections.training import Training, method_in_use
from modules.objectives.perceptual import PerceptualDistance
from modules.rewards.composite import CompositeReward
from modules.system.factories import load_factory
from trainer.methods.protocol import TrainingMethod


def build_method(training: Training, measure: CompositeReward | PerceptualDistance | None) -> TrainingMethod:
    """Return the method of a training section.

    `measure` is what it measures images with in its loss: the reward of a reward method, the perceptual distance of a
    VAE's reconstructions.
    """
    spec, settings = method_in_use(training)
    method: TrainingMethod = load_factory(spec.factory)(settings, training, measure)
    return method
