"""What reward models the images of a reward method: whether it is there, may run, and what learning from it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from modules.config.method_facts import method_of, rollout_of
from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.rewards.problems import problems_of_rewards
from modules.settings.every import Moment
from modules.system.problem import Problem


def problems_of_reward_models(config: Config, approved_code: Collection[str]) -> Iterator[Problem]:
    """Yield what keeps the reward models from working, what is fetched or run for them, and what would spare memory.

    `approved_code` are the hashes of files of the user's own code that may run.
    """
    spec, method = method_of(config), config.training.method
    if spec.held_out_reward is None:
        return
    yield from problems_of_rewards(
        config.reward.models,
        held_out_reward=spec.held_out_reward(method),
        offline=config.model.offline,
        hub_cache_dir=config.model.hub_cache_dir,
        approved_hashes=approved_code,
    )
    if config.reward.early_stopping_patience and config.reward.measure_every.is_never:
        yield Problem(
            "reward.early_stopping_patience",
            "The run is to stop early by the reward, which is never measured.",
            advice="Set how often it is measured, or this to 0.",
        )
    yield from _memory(config)


def problems_of_measuring(config: Config, *, total_steps: int) -> Iterator[Problem]:
    """Yield that the run is over before the reward is measured again, once its steps are counted."""
    every = config.reward.measure_every
    if not method_of(config).needs_reward_models or every.is_never or every.unit not in ("step", "epoch"):
        return  # by time nobody knows
    if total_steps and not every.times(Moment(step=total_steps, epoch=config.training.epochs, seconds=0.0)):
        yield Problem(
            "reward.measure_every",
            f"The run is over before the reward is measured again, {every}: whether it rose is not seen.",
            "warning",
            "Measure more often.",
        )


def _memory(config: Config) -> Iterator[Problem]:
    rollout = rollout_of(config)
    if rollout is None or rollout.gradient_steps <= 1:
        return
    for part in FAMILIES[config.model.family].parts:
        if part.role == "denoiser" and config.part(part.name).checkpointing != "whole":
            yield Problem(
                f"parts.{part.name}.checkpointing",
                f"A step keeps what {rollout.gradient_steps} passes through the {part.label} leave behind, until its "
                "gradient is taken.",
                "info",
                "Set gradient checkpointing to the whole part: then more last steps take next to no more memory.",
            )
