"""AlignProp: backpropagates a reward through the last denoising steps (Prabhudesai et al. 2023, arXiv 2310.03739)."""

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Interval

from modules.objectives import rollout_fields as fields
from modules.objectives.rollout_facts import RolloutFacts
from modules.objectives.spec import MethodGuide, MethodSpec, MethodStart
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import CountTo1000, Fraction, UpTo100
from modules.system.problem import Problem

_DIRECT = When("gradient_truncation", ("direct",))


class AlignProp(Section):
    """Backpropagates a reward through the last denoising steps (Prabhudesai et al. 2023)."""

    name: Literal["alignprop"] = "alignprop"
    probability: Annotated[
        Fraction,
        Setting(
            "Reward step probability",
            "The probability that a step trains on the reward. All other steps use the denoising loss, which keeps the "
            "model close to your images.",
        ),
    ] = 1.0
    steps: Annotated[CountTo1000, Setting("Denoising steps", "Number of steps to sample an image.")] = 20
    gradient_truncation: Annotated[
        Literal["fixed", "uniform", "direct"],
        Setting(
            "Gradient truncation",
            "The gradient passes through the last denoising steps only. Late steps change details, earlier steps the "
            "content. A random number of steps trains both and makes the reward harder to overfit. Direct-Align (SRPO) "
            "trains one step at any noise level: the finished image is noised with known noise, and recovered from one "
            "prediction.",
            choice_labels={
                "fixed": "Fixed number of steps",
                "uniform": "Random number of steps",
                "direct": "One step anywhere (Direct-Align)",
            },
        ),
    ] = "uniform"
    clean_images: Annotated[
        Literal["sampled", "own"],
        Setting(
            "Clean images",
            "The images that are noised for the trained step: sampled by the model itself, or the images of your "
            "concepts, which samples nothing and is as fast as denoising. Published: fewer than 1,500 photographs will "
            "do.",
            choice_labels={"sampled": "Sampled by the model", "own": "Your images"},
            applies_when=_DIRECT,
        ),
    ] = "sampled"
    min_timestep: Annotated[
        int,
        *Interval(ge=0, le=1000),
        advanced_setting(
            "Lowest timestep",
            "The step that is trained is at this timestep or above: late steps only change details.",
            applies_when=_DIRECT,
        ),
    ] = 300
    max_timestep: Annotated[
        CountTo1000,
        advanced_setting(
            "Highest timestep",
            "The step that is trained is at this timestep or below. Published: not above 990.",
            applies_when=_DIRECT,
        ),
    ] = 990
    backprop_steps: Annotated[
        CountTo1000,
        Setting(
            "Backprop steps (K)",
            "How many of the last denoising steps the gradient passes through. The maximum if the number is random.",
            applies_when=When("gradient_truncation", ("fixed", "uniform")),
        ),
    ] = 5
    backprop_steps_min: Annotated[
        CountTo1000,
        Setting(
            "Min backprop steps",
            "The minimum of the random number of steps.",
            applies_when=When("gradient_truncation", ("uniform",)),
        ),
    ] = 1
    guidance: Annotated[
        UpTo100, Setting("Guidance", "Guidance scale: how closely the sampled images follow their captions.")
    ] = 7.0
    loss: Annotated[
        Literal["mean", "target", "hinge"],
        Setting(
            "Loss",
            "Maximize the reward, move it towards the target reward, or raise it only up to the target reward. A "
            "target prevents overoptimization.",
            choice_labels={"mean": "Maximize", "target": "Match the target", "hinge": "Up to the target (hinge)"},
        ),
    ] = "mean"
    target_reward: Annotated[
        float,
        *Interval(ge=-1000, le=1000),
        Setting("Target reward", "On the scale of the reward models.", applies_when=When("loss", ("target", "hinge"))),
    ] = 10.0
    positive_words: Annotated[
        str,
        advanced_setting(
            "Positive words",
            "Words before each prompt that a scored image should agree with, such as Realistic photo. The reward is "
            "then the score with the positive words minus the score with the negative ones, which cancels what a "
            "reward model prefers for any prompt (SRPO). Only for reward models that read the prompt.",
        ),
    ] = ""
    negative_words: Annotated[
        str,
        advanced_setting(
            "Negative words", "Words before each prompt that a scored image should not agree with, such as CG render."
        ),
    ] = ""
    weight: Annotated[
        float,
        *Interval(gt=0, le=1000),
        Setting("Reward loss weight", "The weight of the reward loss relative to the denoising loss."),
    ] = 1.0
    held_out_reward: fields.HeldOutReward = "none"

    @property
    def gradient_steps(self) -> int:
        """The maximum number of predictions with a gradient."""
        return 1 if self.gradient_truncation == "direct" else self.backprop_steps

    @property
    def uses_own_images(self) -> bool:
        """Whether the images of the concepts are noised, and none is sampled."""
        return self.gradient_truncation == "direct" and self.clean_images == "own"


def _problems(settings: AlignProp) -> Iterator[Problem]:
    """Yield a problem where K exceeds the denoising steps, or the minimum of K or of the timesteps its maximum."""
    if settings.gradient_truncation == "direct":
        if settings.min_timestep > settings.max_timestep:
            yield Problem(
                "training.method.min_timestep",
                f"The lowest timestep is {settings.min_timestep}, but the highest is only {settings.max_timestep}.",
                advice=f"Set it to {settings.max_timestep} or less.",
            )
        return
    if settings.backprop_steps > settings.steps:
        yield Problem(
            "training.method.backprop_steps",
            f"Backprop steps (K) is {settings.backprop_steps}, but an image is sampled in {settings.steps} steps.",
            advice=f"Set it to {settings.steps} or less, or increase the denoising steps.",
        )
    if settings.gradient_truncation == "uniform" and settings.backprop_steps_min > settings.backprop_steps:
        yield Problem(
            "training.method.backprop_steps_min",
            f"Min backprop steps is {settings.backprop_steps_min}, but Backprop steps (K) is only "
            f"{settings.backprop_steps}.",
            advice=f"Set Min backprop steps to {settings.backprop_steps} or less.",
        )


ALIGNPROP = MethodSpec(
    "alignprop",
    "AlignProp",
    "Follows the gradient of reward models' scores: the quickest way to images with higher ones.",
    AlignProp,
    "trainer.methods.alignprop:build",
    rollout=lambda settings: RolloutFacts(
        settings.steps, settings.guidance, settings.gradient_steps, uses_own_images=settings.uses_own_images
    ),
    held_out_reward=lambda settings: settings.held_out_reward,
    needs_reward_gradient=True,
    learns_from=lambda settings: "prompts" if settings.probability >= 1 and not settings.uses_own_images else "images",
    sampled_share=lambda settings: settings.probability,
    has_denoising_loss=lambda settings: settings.probability < 1,
    adds_noise=lambda settings: settings.probability < 1,
    is_shareable=lambda settings: True,
    problems=_problems,
    guide=MethodGuide(
        needs=(
            "One or more reward models whose scores have a gradient. Those that are computed from the image alone need "
            "no download.",
            "Prompts: the captions of your concepts. With a reward step probability below 1, images as well.",
        ),
        watch={
            "reward": "Rises from the first steps on. It learns faster than any other method, and overfits faster too.",
            "held_out": fields.HELD_OUT_FALLS,
        },
    ),
    sources={
        "rewards": MethodStart("The fewest steps, if the score has a gradient; it exploits the score soonest, too.")
    },
)
