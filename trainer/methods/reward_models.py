"""The reward models of a run: those used for training, the held-out one, and the prompts for measuring them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from modules.config.method_facts import rollout_of, scorers_of, trains_on_reward
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
    """`followed` is the reward for training, `held_out` is never trained on; `identity` is a hash of both."""

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
    """Load the reward models of a config's method; None for a method that needs none, where none are set.

    Raises DarkroomError for a file that is missing or does not match, and for code that is not approved.
    """
    in_use = scorers_of(config)
    if in_use is None or not (in_use.all or trains_on_reward(config)):
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
    held_out = in_use.held_out
    identity = repr([s.model_dump() for s in in_use.all])
    return RewardModels(
        build_rewards(in_use.trained, context) if in_use.trained or trains_on_reward(config) else CompositeReward(()),
        # On its own scale, whatever weight it has in the settings.
        build_rewards([held_out.model_copy(update={"weight": 1.0, "enabled": True})], context) if held_out else None,
        hashlib.blake2b(identity.encode(), digest_size=12).hexdigest(),
    )


def measured_prompts(config: Config, validation: Dataset, training: Dataset) -> tuple[SamplePrompt, ...]:
    """Return the fixed prompts for measuring the reward: the enabled sample prompts; without any, captions of the
    validation images, or else of the training images. Prompts are repeated with other seeds up to the number of images
    in the settings.
    """
    prompts = [p for p in config.sampling.prompts if p.enabled]
    if not prompts:
        prompts = _captions(config, validation) or _captions(config, training)
    count = config.reward.num_images if prompts else 0
    rounds = (divmod(i, len(prompts)) for i in range(count))
    return tuple(prompts[i].model_copy(update={"seed": (prompts[i].seed + r) % 2**63}) for r, i in rounds)


def _captions(config: Config, dataset: Dataset) -> list[SamplePrompt]:
    """Return a prompt per caption of a dataset, up to the number of images, with the method's sampling settings."""
    rollout = rollout_of(config)
    assert rollout is not None  # reward models score what the method samples
    found: dict[str, SamplePrompt] = {}
    for example in dataset.examples:
        size = example.resize_crops[0].bucket
        for caption in filter(None, islice(dataset.texts(example, run_seed=config.general.seed), 1)):
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
