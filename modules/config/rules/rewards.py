"""The training method: its own settings, and the reward models that it needs."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import method_of, scorers_of
from modules.config.schema import Config
from modules.rewards.registry import REWARDS
from modules.system.errors import DarkroomError
from modules.system.problem import Problem


def method_settings(config: Config) -> Iterator[Problem]:
    """What the method's own record finds wrong among its settings."""
    yield from method_of(config).problems(config.training.method)


def reward_models(config: Config) -> Iterator[Problem]:
    """There is a reward model to train on, the method can use it, and its settings can be read."""
    in_use, method = scorers_of(config), method_of(config)
    if in_use is None:
        return
    if not in_use.trained:
        yield Problem(
            "reward.models",
            f"{method.label} needs a reward model to train on, and there is none.",
            advice="Add a reward model, with a weight above 0, that is not the one held out.",
        )
    scorers, held_out = config.reward.models, in_use.held_out
    for index, scorer in enumerate(scorers):
        if scorer not in in_use.all:
            continue
        path, spec = f"reward.models.{index}", REWARDS[scorer.kind]
        if scorer != held_out and method.needs_reward_gradient and not spec.is_differentiable:
            message = f"No gradient passes through {spec.label}, which {method.label} needs."
            yield Problem(f"{path}.kind", message, advice="Take another reward model, or hold this one out.")
        for name, check in spec.checks.items():
            try:
                check(getattr(scorer, name))
            except DarkroomError as error:
                yield Problem(f"{path}.{name}", error.message, advice=error.advice)
    if held_out is not None and REWARDS[held_out.kind].runs_code and held_out not in scorers:
        message = "Your own function is to be held out, but none is among the reward models."
        yield Problem("training.method.held_out_reward", message, advice="Add it to the reward models, with its file.")
