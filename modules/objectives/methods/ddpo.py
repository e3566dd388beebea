"""DDPO: policy gradients on the denoising steps of sampled images (Black et al. 2023, arXiv 2305.13301)."""

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Interval

from modules.objectives import rollout_fields as fields
from modules.objectives.rollout_facts import RolloutFacts
from modules.objectives.spec import MethodGuide, MethodStart
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import PositiveFraction
from modules.system.problem import Problem


class Ddpo(Section):
    """Makes the denoising steps of images with a high reward more likely (Black et al. 2023)."""

    name: Literal["ddpo"] = "ddpo"
    samples_per_prompt: Annotated[
        int,
        *Interval(ge=1, le=256),
        Setting(
            "Images per prompt",
            "How many images are sampled for each prompt. An optimizer step trains on all images of an accumulation "
            "group: batch size x accumulation steps x this. Published: 128; 32 to 64 work on one GPU.",
            unit="images",
        ),
    ] = 4
    steps: fields.DenoisingSteps = 20
    guidance: fields.Guidance = 5.0
    size: fields.SampleSize = ""
    advantage: Annotated[
        Literal["prompt", "batch"],
        Setting(
            "Compare rewards",
            "What an image's reward is compared with: the latest images of the same prompt, so that easy prompts do "
            "not dominate, or all images of the rollout.",
            choice_labels={"prompt": "With the same prompt", "batch": "With all images"},
        ),
    ] = "prompt"
    tracker_size: Annotated[
        int,
        *Interval(ge=2, le=10_000),
        advanced_setting(
            "Rewards kept per prompt",
            "How many of the latest rewards of each prompt are compared.",
            applies_when=When("advantage", ("prompt",)),
        ),
    ] = 32
    tracker_min_count: Annotated[
        int,
        *Interval(ge=2, le=10_000),
        advanced_setting(
            "Min rewards per prompt",
            "A prompt with fewer rewards than this is compared with all images of the rollout.",
            applies_when=When("advantage", ("prompt",)),
        ),
    ] = 16
    advantage_clip: fields.AdvantageClip = 5.0
    trust_region: fields.TrustRegion = "clip"
    clip_range: fields.ClipRange = 1e-4
    divergence_limit: fields.DivergenceLimit = 1e-5
    inner_epochs: fields.InnerEpochs = 1
    timestep_share: Annotated[PositiveFraction, fields.TIMESTEP_SHARE] = 1.0
    equalize_steps: fields.EqualizeSteps = False
    kl_weight: fields.KlWeight = 0.0
    eta: fields.Eta = 1.0
    flow_steps: fields.FlowSteps = "cps"
    flow_eta: fields.FlowEta = 0.7
    reward_sum: fields.RewardSum = "advantages"
    held_out_reward: fields.HeldOutReward = "none"


def _problems(settings: Ddpo) -> Iterator[Problem]:
    """Yield problems of the sample size and of the tracker."""
    yield from fields.size_problems(settings.size)
    if settings.advantage == "prompt" and settings.tracker_min_count > settings.tracker_size:
        yield Problem(
            "training.method.tracker_min_count",
            f"Min rewards per prompt is {settings.tracker_min_count}, but only {settings.tracker_size} are kept.",
            advice=f"Set it to {settings.tracker_size} or less.",
        )


DDPO = fields.policy_spec(
    "ddpo",
    "DDPO",
    "Samples images, and makes the denoising steps of those with higher scores more likely. Any reward model will do.",
    Ddpo,
    "trainer.methods.ddpo:build",
    rollout=lambda settings: RolloutFacts(
        settings.steps,
        settings.guidance,
        samples_per_prompt=settings.samples_per_prompt,
        trained_steps=fields.trained_steps(settings.steps, settings.timestep_share),
        size=fields.known_size(settings.size),
    ),
    adds_noise=lambda settings: False,
    steps_per_group=lambda settings: settings.inner_epochs,
    reports=lambda settings: fields.reports(
        kl_weight=settings.kl_weight, samples_per_prompt=settings.samples_per_prompt
    ),
    problems=_problems,
    problems_of_process=fields.problems_of_noise,
    guide=MethodGuide(
        needs=(
            fields.NEEDS_REWARDS,
            fields.NEEDS_PROMPTS,
            "Patience: it samples all images it learns from. Published runs take 50 to 200 rollouts.",
        ),
        watch={
            "reward": "Rises slowly, over tens of steps, and is noisy.",
            "held_out": fields.HELD_OUT_FALLS,
            "clip_fraction": "Near 0 learns little from a rollout; constantly above 0.5 means a learning rate that is "
            "too high.",
            "kl": "Grows steadily. A sudden rise comes before broken images.",
            "diversity": fields.DIVERSITY_HALVES,
        },
    ),
    sources={"rewards": MethodStart("As GRPO, for rewards that are compared over all prompts instead of within one.")},
)
