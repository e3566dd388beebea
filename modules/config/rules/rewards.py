"""The training method: its own settings, and the reward models that it needs."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import method_of, scorers_of, trains_on_reward
from modules.config.schema import Config
from modules.rewards.registry import REWARDS
from modules.system.errors import DarkroomError
from modules.system.problem import Problem


def method_settings(config: Config) -> Iterator[Problem]:
    """Yield the problems that the method's record finds in its settings, and an error for dropout that it forbids."""
    method = method_of(config)
    yield from method.problems(config.training.method)
    if method.repeats_forward and config.training.trains == "adapter" and config.adapter.dropout > 0:
        yield Problem(
            "adapter.dropout",
            f"{method.label} compares the model's predictions with those that sampled the images; a dropout of "
            f"{config.adapter.dropout:g} would change them at random.",
            advice="Set it to 0.",
        )


def masked_training(config: Config) -> Iterator[Problem]:
    """Yield a warning if masked training is on beside a method whose steps train on sampled images, without masks."""
    method = method_of(config)
    share = method.sampled_share(config.training.method) if method.samples_images else 0.0
    if not config.masks.enabled or share == 0:
        return
    effect = (
        "Masked training has no effect on the training."
        if share == 1
        else f"Masked training only affects the denoising steps, {1 - share:.0%} of all."
    )
    yield Problem(
        "masks.enabled",
        f"{method.label} trains on images that it samples, for which there are no masks. {effect}",
        "warning",
        "Switch off masked training, or choose another training method.",
    )


def reward_models(config: Config) -> Iterator[Problem]:
    """Yield problems if there is no reward model to train on, the method cannot use it, or its settings are invalid."""
    in_use, method = scorers_of(config), method_of(config)
    if in_use is None:
        return
    if not in_use.trained and trains_on_reward(config):
        yield Problem(
            "reward.models",
            f"{method.label} needs a reward model to train on.",
            advice="Add a reward model with a weight above 0 that is not the held-out reward.",
        )
    scorers, held_out = config.reward.models, in_use.held_out
    for index, scorer in enumerate(scorers):
        if scorer not in in_use.all:
            continue
        path, spec = f"reward.models.{index}", REWARDS[scorer.kind]
        if scorer != held_out and method.needs_reward_gradient and not spec.is_differentiable:
            message = f"{method.label} needs gradients, but {spec.label} is not differentiable."
            yield Problem(f"{path}.kind", message, advice="Choose another reward model, or hold this one out.")
        for name, check in spec.checks.items():
            try:
                check(getattr(scorer, name))
            except DarkroomError as error:
                yield Problem(f"{path}.{name}", error.message, advice=error.advice)
    if held_out is not None and REWARDS[held_out.kind].runs_code and held_out not in scorers:
        message = "The held-out reward is set to a custom function, but the reward models contain none."
        yield Problem(
            "training.method.held_out_reward", message, advice="Add it to the reward models and choose its file."
        )
