"""DiffusionNFT and AWM: policies that are trained on the forward process of their own images.

DiffusionNFT: Zheng et al. 2025, arXiv 2509.16117. AWM: Xue et al. 2025, arXiv 2509.25050.
"""

from typing import Annotated, Literal

from annotated_types import Interval

from modules.objectives import forward_fields
from modules.objectives import rollout_fields as fields
from modules.objectives.spec import MethodGuide, MethodStart
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import UpTo100

_OF_NFT = When("objective", ("negative_aware",))
_OF_AWM = When("objective", ("advantage_weighted",))


class Nft(Section):
    """Samples images of each prompt, and learns to denoise towards the better and away from the worse ones."""

    name: Literal["nft"] = "nft"
    objective: Annotated[
        Literal["negative_aware", "advantage_weighted"],
        Setting(
            "Objective",
            "How an image's reward enters the loss. DiffusionNFT is the stable choice. AWM learns faster, and may "
            "collapse: its clip range and its KL to the sampling model hold it.",
            choice_labels={"negative_aware": "DiffusionNFT", "advantage_weighted": "AWM"},
            choice_help={
                "negative_aware": "Draws predictions towards better images, and a mirrored model's towards worse ones.",
                "advantage_weighted": "The denoising loss of an image, weighted by its advantage, in a clip range.",
            },
        ),
    ] = "negative_aware"
    group_size: fields.GroupSize = 8
    steps: fields.DenoisingSteps = 10
    guidance: Annotated[
        UpTo100,
        Setting(
            "Guidance",
            "Guidance scale of the sampled images. Published without guidance, which the model then learns to do "
            "without; the first images look worse for it. 1 or less turns it off and is twice as fast.",
        ),
    ] = 1.0
    sampler: fields.RolloutSampler = "ddim"
    size: fields.SampleSize = ""
    timesteps_per_image: forward_fields.TimestepsPerImage = 4
    updates_per_rollout: forward_fields.UpdatesPerRollout = 1
    old_policy: forward_fields.FollowingPolicy = "linear"
    beta: Annotated[
        float,
        *Interval(gt=0, le=10),
        Setting(
            "Beta",
            "How strongly the model is kept close to the sampling one: a smaller beta learns faster and is less "
            "stable. Published: 1, and 0.1 for faster learning.",
            applies_when=_OF_NFT,
        ),
    ] = 1.0
    clip_range: Annotated[
        float,
        *Interval(gt=0, le=0.5),
        advanced_setting(
            "Clip range",
            "How far the denoising loss of an image may move from the sampling model's before it is not trained "
            "further. Published: 1e-5.",
            applies_when=_OF_AWM,
        ),
    ] = 1e-5
    sampling_kl_weight: Annotated[
        UpTo100,
        advanced_setting(
            "KL weight, sampling model",
            "Keeps the model close to the one that samples, an average of its former weights. Published: 0.1.",
            applies_when=_OF_AWM,
        ),
    ] = 0.1
    advantage_clip: fields.AdvantageClip = 5.0
    kl_weight: fields.KlWeight = 1e-4
    reward_sum: fields.RewardSum = "advantages"
    held_out_reward: fields.HeldOutReward = "none"


NFT = fields.policy_spec(
    "nft",
    "DiffusionNFT",
    "Samples a group of images for each prompt, and learns to denoise towards the better ones. Any reward model and "
    "any sampler will do.",
    Nft,
    "trainer.methods.nft:build",
    rollout=forward_fields.rollout_of,
    keeps_reference_copy=lambda settings: True,
    steps_per_group=lambda settings: settings.updates_per_rollout,
    guide=MethodGuide(
        needs=(fields.NEEDS_REWARDS, fields.NEEDS_PROMPTS, fields.NEEDS_GROUPS),
        watch={
            "reward": "Rises within tens of steps, and is noisy.",
            "held_out": fields.HELD_OUT_FALLS,
            "equal_rewards": fields.EQUAL_REWARDS,
            "kl": "Grows steadily. A sudden rise comes before broken images: lower the learning rate.",
            "diversity": fields.DIVERSITY_HALVES,
        },
    ),
    sources={
        "rewards": MethodStart("Trains on finished images alone, so it takes few passes for its gain.", is_usual=True)
    },
)
