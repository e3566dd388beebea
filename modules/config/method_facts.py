"""Facts about the training method of a config, from the method's record. Does not import torch."""

from __future__ import annotations

from modules.config.schema import Config
from modules.objectives.registry import METHODS
from modules.objectives.spec import LearnsFrom, MethodSpec, RolloutFacts
from modules.rewards.selection import ScorersInUse, scorers_in_use


def method_of(config: Config) -> MethodSpec:
    """Return the record of a config's method."""
    return METHODS[config.training.method.name]


def rollout_of(config: Config) -> RolloutFacts | None:
    """Return how the method samples during training, or None if it does not."""
    rollout = method_of(config).rollout
    return None if rollout is None else rollout(config.training.method)


def scorers_of(config: Config) -> ScorersInUse | None:
    """Return the reward models of a run, or None if the method needs none."""
    held_out = method_of(config).held_out_reward
    return None if held_out is None else scorers_in_use(config.reward.models, held_out(config.training.method))


def learns_from(config: Config) -> LearnsFrom:
    """Return what the method needs of a concept: images, pairs of images, or only prompts."""
    return method_of(config).learns_from(config.training.method)


def uses_prior(config: Config) -> bool:
    """Return whether training steps need predictions of the original model, before any training."""
    if method_of(config).needs_reference(config.training.method):
        return True
    masks = config.masks
    preserves = masks.enabled and masks.prior_preservation_weight > 0 and masks.unmasked_weight < 1
    has_concept = any(c.enabled and c.kind == "prior_prediction" for c in config.concepts)
    return preserves or has_concept


def keeps_reference_copy(config: Config) -> bool:
    """Return whether training keeps a copy of the trained weights as they were at a later step."""
    return method_of(config).keeps_reference_copy(config.training.method)


def trains_on_reward(config: Config) -> bool:
    """Return whether the method trains on the scores of reward models."""
    method = method_of(config)
    return method.needs_reward_models and method.trains_on_reward(config.training.method)


def steps_per_group(config: Config) -> int:
    """Return how many optimizer steps are made from one accumulation group of the loader."""
    return method_of(config).steps_per_group(config.training.method)
