"""The fields and the sentences of guides that methods which train on their own samples share, each declared once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

from annotated_types import Ge, Interval, Le

from modules.diffusion.process_spec import ProcessSpec
from modules.objectives.spec import MethodSpec
from modules.rewards.registry import hold_out_labels, reward_help
from modules.sampling.registry import sampler_help, sampler_labels
from modules.settings.field import Section, Setting, When, advanced_setting, one_of
from modules.settings.shared_types import HIGHEST_PX, LOWEST_PX, PositiveFraction, UpTo100, sides_of
from modules.system.problem import Problem, quote

DenoisingSteps = Annotated[
    int,
    *Interval(ge=2, le=1000),
    Setting("Denoising steps", "Number of steps to sample an image. Fewer are faster to sample and to train on."),
]
Guidance = Annotated[
    UpTo100,
    Setting(
        "Guidance",
        "Guidance scale: how closely the sampled images follow their prompts. The same in training; 1 or less is no "
        "guidance and twice as fast.",
    ),
]
GroupSize = Annotated[
    int,
    *Interval(ge=2, le=256),
    Setting(
        "Group size",
        "How many images of each prompt are compared with each other. Small groups are unstable; published: 12 to 24. "
        "An optimizer step trains on batch size x accumulation steps x this many images.",
        unit="images",
    ),
]
SAMPLER_CHOICES = one_of(sampler_labels, sampler_help)
SAMPLER = advanced_setting("Sampler", "The sampler of the images. Use the one that you will use.")
RolloutSampler = Annotated[str, *SAMPLER_CHOICES, SAMPLER]
SampleSize = Annotated[
    str,
    Setting(
        "Sample size",
        "The size of the sampled images, such as 512x768. Sample at the size that you will use: smaller images can "
        "leave grid patterns in larger ones.",
        empty_means="as the captioned images",
    ),
]
Eta = Annotated[
    PositiveFraction,
    advanced_setting(
        "Eta", "How much fresh noise each denoising step adds: 1 is DDPM. The model learns from it, so it cannot be 0."
    ),
]
ClipRange = Annotated[
    float,
    *Interval(gt=0, le=0.5),
    advanced_setting(
        "Clip range",
        "How far the probability of a denoising step may move before it is not trained further. It only takes effect "
        "with more than one step per rollout. Published: 1e-4, and 2e-6 if normalized; small because it is a mean over "
        "the latents.",
        applies_when=When("trust_region", ("clip", "normalized")),
    ),
]
FlowSteps = Annotated[
    Literal["cps", "sde"],
    advanced_setting(
        "Noise of flow steps",
        "How the denoising steps of a flow model add fresh noise. It has no effect on DDPM models.",
        choice_labels={"cps": "Coefficients-preserving (CPS)", "sde": "Flow-SDE"},
        choice_help={
            "cps": "Keeps the shares of image and noise in steps of any size: clean images.",
            "sde": "As in Flow-GRPO; with few steps some noise stays in the images.",
        },
    ),
]
FlowEta = Annotated[
    PositiveFraction,
    advanced_setting(
        "Eta of flow steps",
        "How much fresh noise each denoising step of a flow model adds. Published: 0.7. It has no effect on DDPM "
        "models.",
    ),
]
TrustRegion = Annotated[
    Literal["clip", "normalized", "divergence"],
    advanced_setting(
        "Trust region",
        "How far a denoising step may move before it is not trained further. It only takes effect with more than one "
        "step per rollout; the normalized one also balances the denoising steps.",
        choice_labels={
            "clip": "Clipped ratio (PPO)",
            "normalized": "Clipped ratio, normalized (GRPO-Guard)",
            "divergence": "Divergence (Flow-DPPO)",
        },
        choice_help={
            "clip": "The probability ratio stays in the clip range.",
            "normalized": "The same ratio without its bias, with the same spread in all steps: less overoptimization.",
            "divergence": "The exact distance from the model that sampled stays below a limit.",
        },
    ),
]
DivergenceLimit = Annotated[
    PositiveFraction,
    advanced_setting(
        "Divergence limit",
        "Beyond this divergence from the model that sampled, a denoising step is not moved further away. Published: "
        "1e-5.",
        applies_when=When("trust_region", ("divergence",)),
    ),
]
AdvantageClip = Annotated[
    float,
    *Interval(gt=0, le=100),
    advanced_setting("Advantage clip", "The maximum advantage of an image, in standard deviations of the reward."),
]
InnerEpochs = Annotated[
    int,
    *Interval(ge=1, le=32),
    advanced_setting(
        "Steps per rollout", "How many optimizer steps train on the same sampled images. With guidance, 1 is advised."
    ),
]
TIMESTEP_SHARE = Setting(
    "Timestep share",
    "The share of the denoising steps of each image that is trained, chosen at random. The last step never is.",
)
KlWeight = Annotated[
    UpTo100,
    Setting(
        "KL weight",
        "Keeps the model close to the one before training. 0 switches it off and saves a forward pass; a fine-tune "
        "then needs no copy of its original weights.",
    ),
]
RewardSum = Annotated[
    Literal["advantages", "rewards"],
    advanced_setting(
        "Several rewards",
        "How several reward models are combined, with their weights: each is compared on its own, so that their scales "
        "do not matter, or their scores are added first.",
        choice_labels={"advantages": "Add advantages", "rewards": "Add scores"},
    ),
]
EqualizeSteps = Annotated[
    bool,
    advanced_setting(
        "Equalize timesteps",
        "Divides the loss of each denoising step by its influence: otherwise late steps, which change details, "
        "dominate (PCPO).",
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
TARGET_MARGIN = advanced_setting(
    "Target margin",
    "Lowers beta as the model moves away from the reference, so that the mean margin of the pairs stays at this value. "
    "The loss then never goes flat, and beta needs no search. 0 keeps beta as it is; 0.2 is a start.",
)

# What methods need (`MethodGuide.needs`).
NEEDS_REWARDS = "One or more reward models, of any kind."
NEEDS_PROMPTS = "Prompts: the captions of your concepts, or a concept of prompts."
NEEDS_GROUPS = "Groups of 8 images or more for each prompt: it learns only from their differences."

# What metrics show (`MethodGuide.watch`).
HELD_OUT_FALLS = "If it falls while the reward rises, the model exploits the reward: stop there."
EQUAL_REWARDS = "Near 1 nothing is learned: use a finer reward, larger groups or other prompts."
DIVERSITY_HALVES = "If it halves, the images of a prompt become the same."
NEGATIVE_MARGINS = "Falls below 0.5. If it stays there while the margin rises, few pairs are learned."
CHOSEN_ERROR = "Should not rise for long: then images degrade, and a larger beta or an SFT weight helps."

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
    """Yield a problem for an invalid sample size."""
    path = "training.method.size"
    try:
        sides = size_of(size)
    except ValueError:
        message = f"{quote(size)} is not a size such as 512x768."
        yield Problem(path, message, advice="Write width x height in pixels, or leave the field empty.")
        return
    if sides is not None and not all(LOWEST_PX <= s <= HIGHEST_PX and s % _MULTIPLE_PX == 0 for s in sides):
        message = (
            f"The sides of {quote(size)} are not multiples of {_MULTIPLE_PX} px from {LOWEST_PX} to {HIGHEST_PX:,}."
        )
        yield Problem(path, message, advice="Choose such a size, or leave the field empty.")


def trained_steps(num_steps: int, share: float) -> int:
    """Return how many of an image's denoising steps are trained: a share of all but the last, at least one."""
    return max(1, round(share * (num_steps - 1)))


_ONLY_DDPM, _ONLY_FLOW = {"eta": "Eta"}, {"flow_steps": "Noise of flow steps", "flow_eta": "Eta of flow steps"}


def problems_of_noise(settings: Section, process: ProcessSpec) -> Iterator[Problem]:
    """Yield warnings about settings of the noise in denoising steps that models of a process do not use."""
    usual = type(settings).with_defaults()
    for name, label in (_ONLY_DDPM if process.flow is not None else _ONLY_FLOW).items():
        if getattr(settings, name) != getattr(usual, name):
            message = f"{label} has no effect on {process.label} models."
            yield Problem(f"training.method.{name}", message, "warning", "Use the default.")


def reports(*, kl_weight: float, samples_per_prompt: int) -> tuple[str, ...]:
    """Return which of the metrics that have limits a method reports: the KL needs the reference, the diversity two
    images of a prompt.
    """
    return (*(["kl"] if kl_weight > 0 else []), *(["diversity"] if samples_per_prompt > 1 else []))


policy_spec = partial(
    MethodSpec,
    held_out_reward=lambda settings: settings.held_out_reward,
    learns_from=lambda settings: "prompts",
    needs_reference=lambda settings: settings.kl_weight > 0,
    reports=lambda settings: reports(kl_weight=settings.kl_weight, samples_per_prompt=settings.group_size),
    problems=lambda settings: size_problems(settings.size),
    splits_batches=True,
    is_shareable=lambda settings: True,
    repeats_forward=True,
)
"""Returns the record of a method that samples images of prompts and trains a policy on their rewards.

Its settings have these fields, and usually a group of images of each prompt."""
