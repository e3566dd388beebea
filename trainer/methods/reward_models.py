"""The reward models of a run: those used for training, and the held-out one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from modules.config.schema import Config
from modules.config.usage import scorers_of, trains_on_reward
from modules.rewards.composite import CompositeReward, build_rewards
from modules.rewards.protocol import RewardContext
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.system.devices import Device
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets

_FIRST_SETTINGS = frozenset({"enabled", "kind", "weight", "file", "clip_model", "vocabulary", "colour", "jpeg_quality"})
_WAITING_SETTINGS = frozenset({"timeout_seconds", "retry_minutes"})


@dataclass(frozen=True, eq=False)
class RewardModels:
    """`followed` is the reward for training, `held_out` is never trained on; `identity` is a hash of both.

    `modules` are those on the training device.
    """

    followed: CompositeReward
    held_out: CompositeReward | None
    identity: str
    modules: Sequence[nn.Module] = ()
    closing: Sequence[Callable[[], None]] = ()

    def close(self) -> None:
        """End the processes that score images."""
        for close in self.closing:
            close()


def identity_of(scorers: Sequence[Scorer]) -> str:
    """Return a hash of the settings that scores depend on, by which a resumed run knows whether they are comparable.

    Settings that later versions added only count for the kinds that use them, so that older backups stay comparable.
    """
    dumps = [s.model_dump(include={*_FIRST_SETTINGS, *REWARDS[s.kind].settings} - _WAITING_SETTINGS) for s in scorers]
    return hashlib.blake2b(repr(dumps).encode(), digest_size=12).hexdigest()


def load_reward_models(
    config: Config,
    *,
    train_device: Device,
    temp_device: Device,
    approved_hashes: frozenset[str],
    on_bytes: Callable[[float, float], None] | None,
    check: Callable[[], None],
    warn: Callable[[str, str], None],
) -> RewardModels | None:
    """Load the reward models of a config's method; None for a method that needs none, where none are set.

    `check()` is called between images by reward models that score one after the other; `warn(message, advice)` reports
    that one of them has to wait.

    Raises DarkroomError for a file that is missing or does not match, and for code that is not approved.
    """
    in_use = scorers_of(config)
    if in_use is None or not (in_use.all or trains_on_reward(config)):
        return None
    secrets = load_secrets().secrets
    context = RewardContext(
        train_device,
        temp_device,
        offline=config.model.offline,
        hub_cache_dir=config.model.hub_cache_dir,
        hub=hub_access(secrets),
        approved_hashes=approved_hashes,
        on_bytes=on_bytes,
        check=check,
        warn=warn,
        vision_model_key=secrets.vision_model_api_key,
    )
    held_out = in_use.held_out
    return RewardModels(
        build_rewards(in_use.trained, context) if in_use.trained or trains_on_reward(config) else CompositeReward(()),
        # On its own scale, whatever weight it has in the settings.
        build_rewards([held_out.model_copy(update={"weight": 1.0, "enabled": True})], context) if held_out else None,
        identity_of(in_use.all),
        context.placed,
        context.closing,
    )
