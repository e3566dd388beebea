"""DGPO: groups of images are preferred to each other, as pairs are in Diffusion-DPO, without a policy gradient.

Luo et al. 2025, arXiv 2510.08425.
"""

from functools import partial
from typing import Annotated, Literal

from annotated_types import Interval

from modules.objectives import forward_fields
from modules.objectives import rollout_fields as fields
from modules.objectives.spec import MethodGuide, MethodStart
from modules.settings.field import Section, Setting, advanced_setting
from modules.settings.shared_types import UpTo100


class Dgpo(Section):
    """Samples images of each prompt, and learns to prefer the better ones of the group to the worse ones."""

    name: Literal["dgpo"] = "dgpo"
    group_size: fields.GroupSize = 8
    steps: fields.DenoisingSteps = 10
    guidance: Annotated[
        UpTo100,
        Setting(
            "Guidance",
            "Guidance scale of the sampled images; the loss has none. Published: 4.5. 1 or less turns it off, which is "
            "twice as fast, learns faster, and needs a clip range of 1e-5 to 1e-4.",
        ),
    ] = 4.5
    sampler: fields.RolloutSampler = "ddim"
    size: fields.SampleSize = ""
    timesteps_per_image: forward_fields.TimestepsPerImage = 4
    updates_per_rollout: forward_fields.UpdatesPerRollout = 1
    old_policy: forward_fields.FollowingPolicy = "linear"
    reference: Annotated[
        Literal["original", "sampling"],
        Setting(
            "Reference",
            "What the preference of a group is compared with: the model before training, or the model that samples, "
            "which follows the trained one. The latter learns faster without guidance.",
            choice_labels={"original": "Original model", "sampling": "Sampling model"},
        ),
    ] = "original"
    beta: Annotated[
        float,
        *Interval(gt=0, le=1_000_000),
        Setting(
            "Beta",
            "How soon a group counts less because the model already prefers its better images: a larger beta is "
            "sharper. Published: 10 to 100 for the original model as the reference, 2000 to 5000 for the sampling one.",
        ),
    ] = 100.0
    clip_range: Annotated[
        float,
        *Interval(gt=0, le=0.5),
        advanced_setting(
            "Clip range",
            "How far the denoising loss of an image may move from the sampling model's before it is not trained "
            "further. Published: 1e-3 to 1e-2 with guidance, 1e-5 to 1e-4 without.",
        ),
    ] = 1e-3
    advantage_clip: fields.AdvantageClip = 5.0
    kl_weight: fields.KlWeight = 1e-3
    reward_sum: fields.RewardSum = "advantages"
    held_out_reward: fields.HeldOutReward = "none"


DGPO = fields.policy_spec(
    "dgpo",
    "DGPO",
    "Samples a group of images for each prompt, and learns to prefer its better images to its worse ones. Any reward "
    "model and any sampler will do.",
    Dgpo,
    "trainer.methods.dgpo:build",
    rollout=partial(forward_fields.rollout_of, predicts_before_training=True),
    needs_reference=lambda settings: settings.reference == "original" or settings.kl_weight > 0,
    keeps_reference_copy=lambda settings: True,
    steps_per_group=lambda settings: settings.updates_per_rollout,
    guide=MethodGuide(
        needs=(fields.NEEDS_REWARDS, fields.NEEDS_PROMPTS, fields.NEEDS_GROUPS),
        watch={
            "reward": "Rises within tens of steps, and is noisy.",
            "held_out": fields.HELD_OUT_FALLS,
            "margin": "Rises slowly: the model prefers the better images of a group more than the reference does.",
            "clip_fraction": "Near 1 the model is at the end of the clip range and is hardly trained any more.",
            "equal_rewards": fields.EQUAL_REWARDS,
            "kl": "Grows steadily. A sudden rise comes before broken images: lower the learning rate.",
            "diversity": fields.DIVERSITY_HALVES,
        },
    ),
    sources={
        "rewards": MethodStart("Keeps the guidance of the samples, and held-out rewards well; takes more passes.")
    },
)
