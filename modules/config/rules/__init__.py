"""Rules across several fields. Each takes the config and yields problems; none reads a file.

A rule is a function in the file of its topic and one line in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from modules.config.rules import (
    adapters,
    concepts,
    embeddings,
    every_setting,
    images,
    model,
    noise,
    optimizers,
    rewards,
    training,
)
from modules.config.schema import Config
from modules.system.problem import Problem

Rule = Callable[[Config], Iterator[Problem]]

RULES: tuple[Rule, ...] = (
    every_setting.unsupported_settings,
    model.model_variant,
    training.something_is_trained,
    embeddings.embeddings,
    adapters.layer_names,
    adapters.ranks_by_layer,
    adapters.file_format,
    adapters.max_norm,
    adapters.float8_file,
    adapters.misread_file,
    images.sizes,
    images.concepts,
    concepts.prompts_for_images,
    concepts.roles_of_images,
    concepts.dropped_prompts,
    concepts.pairs,
    noise.loss_strengths,
    noise.weighting_gamma,
    every_setting.settings_without_effect,
    images.augmentations,
    concepts.caption_changes,
    model.masks_of_variant,
    model.single_file_of_family,
    model.scaled_float8_file,
    model.text_encoders,
    model.training_adapter,
    model.sampling_model,
    images.samples,
    model.sample_images,
    optimizers.optimizer_fields,
    optimizers.schedule_fields,
    optimizers.schedule_of_optimizer,
    optimizers.falling_schedule,
    optimizers.two_averages,
    optimizers.fused_backward_pass,
    optimizers.plausible_learning_rate,
    optimizers.one_learning_rate,
    optimizers.weights_that_stay_zero,
    training.low_precision_updates,
    training.mixed_16_bit,
    training.float16_overflow,
    training.quantized_weights,
    training.quantized_layer_names,
    training.residual_without_effect,
    noise.noising_strengths,
    noise.timestep_distribution,
    noise.noise_without_effect,
    noise.noise_process,
    training.stops,
    images.validation,
    training.offloaded_layers,
    rewards.reward_models,
    rewards.reward_limits,
    rewards.method_settings,
    rewards.masked_training,
    training.compiling,
    model.autoencoder,
    every_setting.file_names,
)


def problems_of(config: Config) -> list[Problem]:
    """Return all problems that the rules find, in the order of the rules."""
    return [problem for rule in RULES for problem in rule(config)]
