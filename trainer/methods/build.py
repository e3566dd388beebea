"""Building the training method of a config by the factory that its record names."""

from __future__ import annotations

from modules.config.sections.training import Training, method_in_use
from modules.diffusion.process import NoiseProcess
from modules.objectives.perceptual import PerceptualDistance
from modules.objectives.spec import OTHER_METHOD
from modules.rewards.composite import CompositeReward
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from trainer.methods.protocol import TrainingMethod


def require_process(training: Training, process: NoiseProcess) -> None:
    """Raise DarkroomError if the method of a training section has no form for a model's noise process."""
    spec, settings = method_in_use(training)
    if sentence := spec.refusal(settings, process.spec):
        raise DarkroomError(sentence, advice=OTHER_METHOD)


def build_method(training: Training, measure: CompositeReward | PerceptualDistance | None) -> TrainingMethod:
    """Return the method of a training section.

    `measure` is what it measures images with in its loss: the reward of a reward method, the perceptual distance of a
    VAE's reconstructions.
    """
    spec, settings = method_in_use(training)
    method: TrainingMethod = load_factory(spec.factory)(settings, training, measure)
    return method
