"""The training methods, one line each: a config's name to the function that builds the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from modules.config.sections import method as settings
from modules.config.sections.training import Training
from modules.rewards.composite import CompositeReward
from modules.sampling.rollout import RolloutSettings
from modules.sampling.truncation import truncation_of
from trainer.methods.alignprop import AlignProp, RewardLoss
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import TrainingMethod


def _denoise(training: Training, _reward: CompositeReward | None = None) -> Denoise:
    return Denoise(training.loss.weighting, training.loss.gamma)


def _alignprop(training: Training, reward: CompositeReward | None) -> AlignProp:
    chosen = training.method
    assert isinstance(chosen, settings.AlignProp)
    assert reward is not None
    return AlignProp(
        reward,
        RolloutSettings(chosen.steps, chosen.guidance),
        truncation_of(
            chosen.gradient_truncation,
            backprop_steps=chosen.backprop_steps,
            backprop_steps_min=chosen.backprop_steps_min,
        ),
        RewardLoss(chosen.loss, chosen.target_reward, chosen.weight),
        chosen.probability,
        _denoise(training),
    )


METHODS: Mapping[str, Callable[[Training, CompositeReward | None], TrainingMethod]] = {
    "denoise": _denoise,
    "alignprop": _alignprop,
}


def build_method(training: Training, reward: CompositeReward | None) -> TrainingMethod:
    """Return the method that a config's training section asks for; `reward` is what reward methods follow."""
    return METHODS[training.method.name](training, reward)
