"""The fields that methods which train on their own samples share: each is declared here once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.rewards.registry import hold_out_labels, reward_help
from modules.sampling.registry import sampler_help, sampler_labels
from modules.settings.field import Setting, one_of
from modules.settings.shared_types import HIGHEST_PX, LOWEST_PX, sides_of
from modules.system.problem import Problem, shown

DenoisingSteps = Annotated[
    int,
    Ge(2),
    Le(1000),
    Setting("Denoising steps", "Number of steps to sample an image. Fewer are faster to sample and to train on."),
]
Guidance = Annotated[
    float,
    Ge(0),
    Le(100),
    Setting(
        "Guidance",
        "Guidance scale: how closely the sampled images follow their prompts. The same in training; 1 or less is no "
        "guidance and twice as fast.",
    ),
]
GroupSize = Annotated[
    int,
    Ge(2),
    Le(256),
    Setting(
        "Group size",
        "How many images of each prompt are compared with each other. Small groups are unstable; published: 12 to 24. "
        "An optimizer step trains on batch size x accumulation steps x this many images.",
        unit="images",
    ),
]
SAMPLER_CHOICES = one_of(sampler_labels, sampler_help)
SAMPLER = Setting("Sampler", "The sampler of the images. Use the one that you will use.", level="advanced")
RolloutSampler = Annotated[str, *SAMPLER_CHOICES, SAMPLER]
SampleSize = Annotated[
    str,
    Setting(
        "Sample size",
        "The size of the sampled images, such as 512x768. Sample at the size that you will use: smaller images can "
        "leave grid patterns in larger ones.",
        empty_means="the size of the images whose captions are the prompts",
    ),
]
Eta = Annotated[
    float,
    Gt(0),
    Le(1),
    Setting(
        "Eta",
        "How much fresh noise each denoising step adds: 1 is DDPM. The model learns from it, so it cannot be 0.",
        level="advanced",
    ),
]
ClipRange = Annotated[
    float,
    Gt(0),
    Le(0.5),
    Setting(
        "Clip range",
        "How far the probability of a denoising step may move before it is not trained further. It only takes effect "
        "with more than one step per rollout. Published: 1e-4; small because it is a mean over the latents.",
        level="advanced",
    ),
]
AdvantageClip = Annotated[
    float,
    Gt(0),
    Le(100),
    Setting(
        "Advantage clip",
        "The maximum advantage of an image, in standard deviations of the reward.",
        level="advanced",
    ),
]
InnerEpochs = Annotated[
    int,
    Ge(1),
    Le(32),
    Setting(
        "Steps per rollout",
        "How many optimizer steps train on the same sampled images. With guidance, 1 is advised.",
        level="advanced",
    ),
]
TIMESTEP_SHARE = Setting(
    "Timestep share",
    "The share of the denoising steps of each image that is trained, chosen at random. The last step never is.",
)
KlWeight = Annotated[
    float,
    Ge(0),
    Le(100),
    Setting(
        "KL weight",
        "Keeps the model close to the one before training. 0 switches it off and saves a forward pass; a fine-tune "
        "then needs no copy of its original weights.",
    ),
]
RewardSum = Annotated[
    Literal["advantages", "rewards"],
    Setting(
        "Several rewards",
        "How several reward models are combined, with their weights: each is compared on its own, so that their scales "
        "do not matter, or their scores are added first.",
        level="advanced",
        choice_labels={"advantages": "Add advantages", "rewards": "Add scores"},
    ),
]
EqualizeSteps = Annotated[
    bool,
    Setting(
        "Equalize timesteps",
        "Divides the loss of each denoising step by its influence: otherwise late steps, which change details, "
        "dominate (PCPO).",
        level="advanced",
    ),
]
HeldOutReward = Annotated[
    str,
    *one_of(hold_out_labels, reward_help),
    Setting(
        "Held-out reward",
        "A reward model that is only logged, not trained on. If its score falls while the others rise, the model "
        "overfits the reward. If this reward is in the list of reward models, it is held out there.",
    ),
]

TargetMargin = Annotated[float, Ge(0), Le(100)]
TARGET_MARGIN = Setting(
    "Target margin",
    "Lowers beta as the model moves away from the reference, so that the mean margin of the pairs stays at this value. "
    "The loss then never goes flat, and beta needs no search. 0 keeps beta as it is; 0.2 is a start.",
    level="advanced",
)

_MULTIPLE_PX = 8  # of every family's latents


def size_of(size: str) -> tuple[int, int] | None:
    """Return the width and height in pixels of a sample size; None for an empty one."""
    return sides_of(size) if size.strip() else None


def known_size(size: str) -> tuple[int, int] | None:
    """Return the width and height in pixels of a sample size; None for an empty or an invalid one."""
    try:
        return size_of(size)
    except ValueError:  # reported by `size_problems`
        return None


def size_problems(size: str) -> Iterator[Problem]:
    """Yield a problem for a sample size that is not one."""
    path = "training.method.size"
    try:
        sides = size_of(size)
    except ValueError:
        message = f"{shown(size)} is not a size such as 512x768."
        yield Problem(path, message, advice="Write width x height in pixels, or leave the field empty.")
        return
    if sides is not None and not all(LOWEST_PX <= s <= HIGHEST_PX and s % _MULTIPLE_PX == 0 for s in sides):
        message = (
            f"The sides of {shown(size)} are not multiples of {_MULTIPLE_PX} px from {LOWEST_PX} to {HIGHEST_PX:,}."
        )
        yield Problem(path, message, advice="Choose such a size, or leave the field empty.")


def trained_steps(num_steps: int, share: float) -> int:
    """Return how many of an image's denoising steps are trained: a share of all but the last, at least one."""
    return max(1, round(share * (num_steps - 1)))


def reports(*, kl_weight: float, samples_per_prompt: int) -> tuple[str, ...]:
    """Return which of the metrics that have limits a method reports: the KL needs the reference, the diversity two
    images of a prompt.
    """
    return (*(["kl"] if kl_weight > 0 else []), *(["diversity"] if samples_per_prompt > 1 else []))
