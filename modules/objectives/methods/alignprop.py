"""AlignProp: a reward's gradient through the last denoising steps (Prabhudesai et al. 2023, arXiv 2310.03739)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.objectives.spec import MethodSpec, RolloutFacts
from modules.rewards.registry import hold_out_labels
from modules.settings.field import Section, Setting, When, one_of
from modules.system.problem import Problem


class AlignProp(Section):
    """A reward's gradient through the last denoising steps (Prabhudesai et al. 2023)."""

    name: Literal["alignprop"] = "alignprop"
    probability: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Reward step probability",
            "The probability that a step follows the reward; the others denoise as usual, which keeps the model close "
            "to your images.",
        ),
    ] = 1.0
    steps: Annotated[int, Ge(1), Le(1000), Setting("Denoising steps", "How many steps an image is sampled in.")] = 20
    gradient_truncation: Annotated[
        Literal["fixed", "uniform"],
        Setting(
            "Gradient truncation",
            "The gradient passes through the last denoising steps only. Late steps change detail, earlier ones what "
            "the image shows; a number drawn each time reaches both, and the reward is harder to overfit.",
            choice_labels={"fixed": "A fixed number", "uniform": "A number drawn each time"},
        ),
    ] = "uniform"
    backprop_steps: Annotated[
        int,
        Ge(1),
        Le(1000),
        Setting(
            "Backprop steps (K)",
            "Through how many of the last denoising steps the gradient passes; the most of them where the number is "
            "drawn.",
        ),
    ] = 5
    backprop_steps_min: Annotated[
        int,
        Ge(1),
        Le(1000),
        Setting(
            "Min backprop steps",
            "The fewest of them, where the number is drawn.",
            applies_when=When("gradient_truncation", ("uniform",)),
        ),
    ] = 1
    guidance: Annotated[
        float, Ge(0), Le(100), Setting("Guidance", "How strictly the sampled images follow their captions.")
    ] = 7.0
    loss: Annotated[
        Literal["mean", "target", "hinge"],
        Setting(
            "Loss",
            "The higher the better, without end; or as near as can be to a score; or up to a score and no further, "
            "which keeps a reward from being overoptimized.",
            choice_labels={"mean": "Higher is better", "target": "Near a score", "hinge": "Up to a score"},
        ),
    ] = "mean"
    target_reward: Annotated[
        float,
        Ge(-1000),
        Le(1000),
        Setting("Target reward", "In the reward models' own numbers.", applies_when=When("loss", ("target", "hinge"))),
    ] = 10.0
    weight: Annotated[
        float, Gt(0), Le(1000), Setting("Weight", "How much a step for the reward counts against the others.")
    ] = 1.0
    held_out_reward: Annotated[
        str,
        *one_of(hold_out_labels),
        Setting(
            "Held-out reward model",
            "A reward model that is only watched: when its score falls while the others rise, the reward is being "
            "overfitted. One of this kind among the reward models is then watched instead of trained on.",
        ),
    ] = "none"


def _problems(settings: AlignProp) -> Iterator[Problem]:
    """Yield that more of the last steps backpropagate than there are, or more at least than at most."""
    if settings.backprop_steps > settings.steps:
        yield Problem(
            "training.method.backprop_steps",
            f"The gradient is to pass through the last {settings.backprop_steps} steps, but an image is sampled in "
            f"{settings.steps}.",
            advice=f"Set it to {settings.steps} or fewer, or sample in more steps.",
        )
    if settings.gradient_truncation == "uniform" and settings.backprop_steps_min > settings.backprop_steps:
        yield Problem(
            "training.method.backprop_steps_min",
            f"At least {settings.backprop_steps_min} of the last steps are to learn, and at most "
            f"{settings.backprop_steps}.",
            advice=f"Set the fewest to {settings.backprop_steps} or less.",
        )


SPEC = MethodSpec(
    "alignprop",
    "AlignProp",
    "AlignProp raises the score that reward models give to images that the model samples.",
    AlignProp,
    "trainer.methods.alignprop:build",
    rollout=lambda settings: RolloutFacts(settings.steps, settings.guidance, settings.backprop_steps),
    held_out_reward=lambda settings: settings.held_out_reward,
    needs_reward_gradient=True,
    problems=_problems,
)
