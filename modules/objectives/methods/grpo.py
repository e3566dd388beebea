"""GRPO: policy gradients with the images of one prompt compared (Flow-GRPO 2505.05470, DanceGRPO 2505.07818)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Interval

from modules.objectives import rollout_fields as fields
from modules.objectives.rollout_facts import RolloutFacts
from modules.objectives.spec import MethodGuide, MethodStart
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import CountTo1000, PositiveFraction
from modules.system.problem import Problem


class Grpo(Section):
    """Compares the images of a prompt, and makes the better ones more likely (Liu et al. 2025, Xue et al. 2025)."""

    name: Literal["grpo"] = "grpo"
    group_size: fields.GroupSize = 8
    best_of: Annotated[
        int,
        *Interval(ge=0, le=256),
        advanced_setting(
            "Train on best and worst",
            "Train only on this many images of each group, half of them the best and half the worst, which saves time. "
            "0 trains on all.",
            unit="images",
        ),
    ] = 0
    steps: fields.DenoisingSteps = 16
    guidance: fields.Guidance = 5.0
    size: fields.SampleSize = ""
    first_noise: Annotated[
        Literal["different", "shared"],
        Setting(
            "First noise",
            "Whether the images of a group start from different noise or from the same; then they only differ by the "
            "noise of their denoising steps.",
            choice_labels={"different": "Different", "shared": "Shared in a group"},
        ),
    ] = "different"
    timesteps: Annotated[
        Literal["share", "window"],
        Setting(
            "Trained timesteps",
            "A random share of the denoising steps, or a sliding window of them (MixGRPO): only steps in the window "
            "add noise and are trained.",
            choice_labels={"share": "Random share", "window": "Sliding window"},
        ),
    ] = "share"
    timestep_share: Annotated[
        PositiveFraction, replace(fields.TIMESTEP_SHARE, applies_when=When("timesteps", ("share",)))
    ] = 0.6
    window_size: Annotated[
        CountTo1000,
        Setting(
            "Window size",
            "How many consecutive denoising steps are trained.",
            unit="steps",
            applies_when=When("timesteps", ("window",)),
        ),
    ] = 4
    window_every: Annotated[
        int,
        *Interval(ge=1, le=100_000),
        Setting(
            "Move the window every",
            "After this many optimizer steps the window moves to the next denoising step, and from the last ones back "
            "to the first.",
            unit="steps",
            applies_when=When("timesteps", ("window",)),
        ),
    ] = 25
    advantage_clip: fields.AdvantageClip = 5.0
    trust_region: fields.TrustRegion = "clip"
    clip_range: fields.ClipRange = 1e-4
    divergence_limit: fields.DivergenceLimit = 1e-5
    inner_epochs: fields.InnerEpochs = 1
    equalize_steps: fields.EqualizeSteps = False
    kl_weight: fields.KlWeight = 0.01
    eta: fields.Eta = 1.0
    flow_steps: fields.FlowSteps = "cps"
    flow_eta: fields.FlowEta = 0.7
    reward_sum: fields.RewardSum = "advantages"
    held_out_reward: fields.HeldOutReward = "none"


def _problems(settings: Grpo) -> Iterator[Problem]:
    """Yield problems of the sample size, the window and the number of images that are trained."""
    yield from fields.size_problems(settings.size)
    if settings.timesteps == "window" and settings.window_size > settings.steps - 1:
        yield Problem(
            "training.method.window_size",
            f"The window of {settings.window_size} denoising steps does not fit: of {settings.steps} steps all but the "
            "last can be trained.",
            advice=f"Set it to {settings.steps - 1} or less, or increase the denoising steps.",
        )
    if settings.best_of == 1 or settings.best_of > settings.group_size:
        yield Problem(
            "training.method.best_of",
            f"{settings.best_of} of the {settings.group_size} images of a group cannot be its best and its worst.",
            advice=f"Set it to 2 to {settings.group_size}, or to 0 to train on all of them.",
        )


def _rollout(settings: Grpo) -> RolloutFacts:
    """Return how it samples. Of a window all steps are trained."""
    is_window = settings.timesteps == "window"
    num_trained = settings.window_size if is_window else fields.trained_steps(settings.steps, settings.timestep_share)
    return RolloutFacts(
        settings.steps,
        settings.guidance,
        samples_per_prompt=settings.group_size,
        trained_steps=num_trained,
        trained_per_prompt=settings.best_of,
        size=fields.known_size(settings.size),
    )


GRPO = fields.policy_spec(
    "grpo",
    "GRPO",
    "Samples a group of images for each prompt, and makes the better ones more likely. Any reward model will do.",
    Grpo,
    "trainer.methods.grpo:build",
    rollout=_rollout,
    adds_noise=lambda settings: False,
    steps_per_group=lambda settings: settings.inner_epochs,
    problems=_problems,
    problems_of_process=fields.problems_of_noise,
    guide=MethodGuide(
        needs=(fields.NEEDS_REWARDS, fields.NEEDS_PROMPTS, fields.NEEDS_GROUPS),
        watch={
            "reward": "Rises slowly, over tens of steps, and is noisy.",
            "held_out": fields.HELD_OUT_FALLS,
            "equal_rewards": fields.EQUAL_REWARDS,
            "kl": "Grows steadily. A sudden rise comes before broken images; a higher KL weight holds it.",
            "diversity": fields.DIVERSITY_HALVES,
        },
    ),
    sources={"rewards": MethodStart("Trains every denoising step of its images, which takes many passes.")},
)
