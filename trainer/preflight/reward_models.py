"""The models that score images in training: whether the reward models, or the files of the perceptual distance in the
loss of a VAE, exist and may run, and how training with them saves memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from modules.config.schema import Config
from modules.config.usage import method_of, rollout_of, scorers_of, settings_of_method, uses_perceptual_distance
from modules.data.dataset import Dataset
from modules.objectives.perceptual_files import problems_of_files
from modules.rewards.problems import problems_of_rewards
from modules.rewards.servers import problems_of_servers
from modules.settings.every import Moment
from modules.system.problem import Problem, quote
from modules.system.secrets_file import load_secrets
from trainer.methods.measured_prompts import measured_prompts, trained_prompts


def problems_of_reward_models(config: Config, approved_code: Collection[str]) -> Iterator[Problem]:
    """Yield problems of the reward models, their downloads and code, and settings that would save memory.

    `approved_code` are the hashes of the user's own code files that may run.
    """
    spec, method = method_of(config), settings_of_method(config)
    if spec.held_out_reward is None:
        return
    yield from problems_of_rewards(
        config.reward.models,
        held_out_reward=spec.held_out_reward(method),
        offline=config.model.offline,
        hub_cache_dir=config.model.hub_cache_dir,
        approved_hashes=approved_code,
    )
    yield from _memory(config)


def problems_of_reward_servers(config: Config, approved: Collection[str]) -> Iterator[Problem]:
    """Yield problems of the servers that score images, each of which gets a test image if it is approved."""
    spec = method_of(config)
    if spec.held_out_reward is not None:
        yield from problems_of_servers(
            config.reward.models,
            held_out_reward=spec.held_out_reward(settings_of_method(config)),
            approved_hashes=approved,
            vision_model_key=load_secrets().secrets.vision_model_api_key,
        )


def problems_of_measuring(
    config: Config, validation: Dataset, training: Dataset, *, total_steps: int
) -> Iterator[Problem]:
    """Yield a warning if the run ends before a measurement, and name measured prompts that are trained on."""
    every, in_use = config.reward.measure_every, scorers_of(config)
    if in_use is None or not in_use.all or every.is_never:
        return
    yield from _trained_prompts(config, validation, training)
    if every.unit not in ("step", "epoch"):
        return  # the duration of the run is not known
    if total_steps and not every.times(Moment(step=total_steps, epoch=config.training.epochs, seconds=0.0)):
        yield Problem(
            "reward.measure_every",
            f"The reward is measured {every}, but the run ends before that. Its change would not be visible.",
            "warning",
            "Measure more often.",
        )


def _trained_prompts(config: Config, validation: Dataset, training: Dataset) -> Iterator[Problem]:
    trained = trained_prompts(config, validation, training)
    if not trained:
        return
    measured = len({p.prompt.strip() for p in measured_prompts(config, validation, training)})
    which = "all" if len(trained) == measured else f"{len(trained):,} of {measured:,}"
    yield Problem(
        "reward.measure_every",
        f"The reward is measured on prompts that are also trained on ({which}), such as {quote(trained[0])}. It does "
        "not show how the model does on other prompts.",
        "info",
        "Add samples with other prompts under Sampling & validation, or a validation concept with other captions.",
    )


def _memory(config: Config) -> Iterator[Problem]:
    rollout = rollout_of(config)
    if rollout is None or rollout.gradient_steps <= 1:
        return
    for part in config.family.parts:
        if part.role == "denoiser" and config.part(part.name).checkpointing != "whole":
            yield Problem(
                f"parts.{part.name}.checkpointing",
                f"A training step keeps the activations of {rollout.gradient_steps} passes through the {part.label} "
                "until its backward pass.",
                "info",
                "Set it to Whole part at once. Then more backprop steps need almost no more memory.",
            )


def problems_of_perceptual(config: Config) -> Iterator[Problem]:
    """Yield missing or unsuitable files as errors, and coming downloads as infos."""
    if uses_perceptual_distance(config):
        model = config.model
        yield from problems_of_files(config.training.vae, offline=model.offline, hub_cache_dir=model.hub_cache_dir)
