"""What is learned from: the training methods, each with the fields that are its own."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.rewards.registry import hold_out_labels
from modules.settings.field import Section, Setting, When, one_of


class Denoise(Section):
    """The ordinary method: take noise out of images (Ho et al. 2020)."""

    name: Literal["denoise"] = "denoise"


class AlignProp(Section):
    """A reward's gradient through the last denoising steps (Prabhudesai et al. 2023)."""

    name: Literal["alignprop"] = "alignprop"
    probability: Annotated[
        float,
        Ge(0),
        Le(1),
        Setting(
            "Share of steps",
            "The share of steps that follow the reward; the others denoise as usual, which keeps the model close to "
            "your images.",
        ),
    ] = 1.0
    steps: Annotated[int, Ge(1), Le(1000), Setting("Denoising steps", "How many steps an image is painted in.")] = 20
    gradient_truncation: Annotated[
        Literal["fixed", "uniform"],
        Setting(
            "Steps that learn",
            "The gradient passes through the last steps of the chain only. Late steps change detail, earlier ones what "
            "the image shows; a number drawn anew each time reaches both and is harder to cheat.",
            choice_labels={"fixed": "A fixed number", "uniform": "A number drawn each time"},
        ),
    ] = "uniform"
    backprop_steps: Annotated[
        int,
        Ge(1),
        Le(1000),
        Setting("Last steps", "How many of the last steps learn; the most of them where the number is drawn."),
    ] = 5
    backprop_steps_min: Annotated[
        int,
        Ge(1),
        Le(1000),
        Setting(
            "At least", "The fewest last steps that learn.", applies_when=When("gradient_truncation", ("uniform",))
        ),
    ] = 1
    guidance: Annotated[
        float, Ge(0), Le(100), Setting("Guidance", "How strictly the painted images follow their captions.")
    ] = 7.0
    loss: Annotated[
        Literal["mean", "target", "hinge"],
        Setting(
            "Loss",
            "The higher the better, without end; or as near as can be to a rating; or up to a rating and no further, "
            "which keeps a reward from being overdone.",
            choice_labels={"mean": "Higher is better", "target": "Near a rating", "hinge": "Up to a rating"},
        ),
    ] = "mean"
    target_reward: Annotated[
        float,
        Ge(-1000),
        Le(1000),
        Setting(
            "Rating aimed at", "In the reward models' own numbers.", applies_when=When("loss", ("target", "hinge"))
        ),
    ] = 10.0
    weight: Annotated[
        float, Gt(0), Le(1000), Setting("Weight", "How much a step for the reward counts against the others.")
    ] = 1.0
    held_out_reward: Annotated[
        str,
        *one_of(hold_out_labels),
        Setting(
            "Held-out reward model",
            "A reward model that is only watched: when its rating falls while the others rise, the reward is being "
            "cheated. "
            "One of this kind among the reward models is then watched instead of followed.",
        ),
    ] = "none"


MethodSettings = Denoise | AlignProp
METHOD_LABELS = {"denoise": "Denoising", "alignprop": "AlignProp"}
