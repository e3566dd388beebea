"""The reward models of a run: those that training follows, the held-out one, and the prompts they score."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from modules.config.method_facts import rollout_of, scorers_of
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.data.dataset import Dataset
from modules.rewards.composite import CompositeReward, build_rewards
from modules.rewards.protocol import RewardContext
from modules.system.devices import Device
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets


@dataclass(frozen=True, eq=False)
class RewardModels:
    """`followed` is what a method learns from, `held_out` is never learned from; `identity` stands for both."""

    followed: CompositeReward
    held_out: CompositeReward | None
    identity: str


def load_reward_models(
    config: Config,
    *,
    train_device: Device,
    temp_device: Device,
    approved_hashes: frozenset[str],
    on_bytes: Callable[[float, float], None] | None,
) -> RewardModels | None:
    """Load what scores the images of a config's method; None for a method that needs no reward models.

    Raises DarkroomError for a file that is missing or does not fit, and for code that is not approved.
    """
    in_use = scorers_of(config)
    if in_use is None:
        return None
    context = RewardContext(
        train_device,
        temp_device,
        offline=config.model.offline,
        hub_cache_dir=config.model.hub_cache_dir,
        hub=hub_access(load_secrets().secrets),
        approved_hashes=approved_hashes,
        on_bytes=on_bytes,
    )
    watched = in_use.held_out
    identity = repr([s.model_dump() for s in in_use.all])
    return RewardModels(
        build_rewards(in_use.trained, context),
        # Its own scale, whatever weight it would have among the others.
        build_rewards([watched.model_copy(update={"weight": 1.0, "enabled": True})], context) if watched else None,
        hashlib.blake2b(identity.encode(), digest_size=12).hexdigest(),
    )


def measured_prompts(config: Config, validation: Dataset, training: Dataset) -> tuple[SamplePrompt, ...]:
    """Return what is painted for a measurement of the reward, always the same: the enabled samples; where there are
    none, captions of the validation images, or else of the images themselves. Prompts come again from other seeds
    until there are as many images as set.
    """
    prompts = [p for p in config.sampling.prompts if p.enabled]
    if not prompts:
        prompts = _captions(config, validation) or _captions(config, training)
    count = config.reward.num_images if prompts else 0
    rounds = (divmod(i, len(prompts)) for i in range(count))
    return tuple(prompts[i].model_copy(update={"seed": (prompts[i].seed + r) % 2**63}) for r, i in rounds)


def _captions(config: Config, dataset: Dataset) -> list[SamplePrompt]:
    """Return a prompt for each caption of a data set, as many as are measured, sampled as the method samples."""
    rollout = rollout_of(config)
    assert rollout is not None  # reward models score what the method samples
    found: dict[str, SamplePrompt] = {}
    for example in dataset.examples:
        size = example.resize_crops[0].bucket
        for caption in example.image.captions[:1]:
            found.setdefault(
                caption,
                SamplePrompt(
                    prompt=caption,
                    width_px=size.width_px,
                    height_px=size.height_px,
                    seed=len(found),
                    steps=rollout.steps,
                    guidance=rollout.guidance,
                ),
            )
    return list(found.values())[: config.reward.num_images]
