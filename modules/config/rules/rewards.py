"""The reward methods: somebody reward models, and the chain is as long as what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.sections.method import AlignProp
from modules.rewards.colour import parse_colour
from modules.rewards.registry import REWARDS
from modules.rewards.selection import held_out_scorer, trained_scorers
from modules.rewards.user_code_file import split_reference
from modules.system.errors import DarkroomError
from modules.system.problem import Problem


def reward_models(config: Config) -> Iterator[Problem]:
    """A reward model is there to be followed, lets a gradient pass, and its settings can be read."""
    method = config.training.method
    if not isinstance(method, AlignProp):
        return
    scorers = config.reward.models
    trained = trained_scorers(scorers, method.held_out_reward)
    if not trained:
        yield Problem(
            "reward.models",
            "A reward is to be followed, but no reward model is there to give one.",
            advice="Add a reward model, with a weight above 0, that is not the one held out.",
        )
    held_out = held_out_scorer(scorers, method.held_out_reward)
    for index, scorer in enumerate(scorers):
        if scorer not in (*trained, held_out):
            continue
        path = f"reward.models.{index}"
        if scorer != held_out and not REWARDS[scorer.kind].is_differentiable:
            message = f"No gradient passes through {REWARDS[scorer.kind].label}, which AlignProp needs."
            yield Problem(f"{path}.kind", message, advice="Take another reward model, or hold this one out.")
        try:
            if scorer.kind == "colour_target":
                parse_colour(scorer.colour)
            elif scorer.kind == "user_code":
                split_reference(scorer.file)
        except DarkroomError as error:
            name = "colour" if scorer.kind == "colour_target" else "file"
            yield Problem(f"{path}.{name}", error.message, advice=error.advice)
    if held_out is not None and held_out.kind == "user_code" and held_out not in scorers:
        message = "Your own function is to be held out, but none is among the reward models."
        yield Problem("training.method.held_out_reward", message, advice="Add it to the reward models, with its file.")


def reward_rollout(config: Config) -> Iterator[Problem]:
    """The last steps that learn are no more than there are, and the fewest no more than the most."""
    method = config.training.method
    if not isinstance(method, AlignProp):
        return
    if method.backprop_steps > method.steps:
        yield Problem(
            "training.method.backprop_steps",
            f"The last {method.backprop_steps} steps are to learn, but an image is painted in {method.steps}.",
            advice=f"Set it to {method.steps} or fewer, or paint in more steps.",
        )
    if method.gradient_truncation == "uniform" and method.backprop_steps_min > method.backprop_steps:
        yield Problem(
            "training.method.backprop_steps_min",
            f"At least {method.backprop_steps_min} of the last steps are to learn, and at most "
            f"{method.backprop_steps}.",
            advice=f"Set the fewest to {method.backprop_steps} or less.",
        )
