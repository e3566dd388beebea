"""Rules across several fields. Each takes the config and yields problems; none reads a file.

A rule is a function in the file of its topic and one line in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from modules.config.rules.adapters import (
    file_format,
    float8_file,
    layer_names,
    max_norm,
    misread_file,
    ranks_by_layer,
)
from modules.config.rules.concepts import caption_changes, dropped_prompts, pairs, prompts_for_images, roles_of_images
from modules.config.rules.embeddings import embeddings
from modules.config.rules.every_setting import file_names, settings_without_effect, unsupported_settings
from modules.config.rules.images import augmentations, concepts, samples, sizes, validation
from modules.config.rules.model import (
    autoencoder,
    masks_of_variant,
    model_variant,
    sample_images,
    sampling_model,
    scaled_float8_file,
    single_file_of_family,
    text_encoders,
    training_adapter,
)
from modules.config.rules.noise import (
    loss_strengths,
    noise_process,
    noise_without_effect,
    noising_strengths,
    timestep_distribution,
    weighting_gamma,
)
from modules.config.rules.optimizers import (
    falling_schedule,
    fused_backward_pass,
    one_learning_rate,
    optimizer_fields,
    plausible_learning_rate,
    schedule_fields,
    schedule_of_optimizer,
    two_averages,
    weights_that_stay_zero,
)
from modules.config.rules.rewards import masked_training, method_settings, reward_limits, reward_models
from modules.config.rules.training import (
    compiling,
    float16_overflow,
    low_precision_updates,
    mixed_16_bit,
    offloaded_layers,
    quantized_layer_names,
    quantized_weights,
    residual_without_effect,
    something_is_trained,
    stops,
)
from modules.config.schema import Config
from modules.system.problem import Problem

Rule = Callable[[Config], Iterator[Problem]]

RULES: tuple[Rule, ...] = (
    unsupported_settings,
    model_variant,
    something_is_trained,
    embeddings,
    layer_names,
    ranks_by_layer,
    file_format,
    max_norm,
    float8_file,
    misread_file,
    sizes,
    concepts,
    prompts_for_images,
    roles_of_images,
    dropped_prompts,
    pairs,
    loss_strengths,
    weighting_gamma,
    settings_without_effect,
    augmentations,
    caption_changes,
    masks_of_variant,
    single_file_of_family,
    scaled_float8_file,
    text_encoders,
    training_adapter,
    sampling_model,
    samples,
    sample_images,
    optimizer_fields,
    schedule_fields,
    schedule_of_optimizer,
    falling_schedule,
    two_averages,
    fused_backward_pass,
    plausible_learning_rate,
    one_learning_rate,
    weights_that_stay_zero,
    low_precision_updates,
    mixed_16_bit,
    float16_overflow,
    quantized_weights,
    quantized_layer_names,
    residual_without_effect,
    noising_strengths,
    timestep_distribution,
    noise_without_effect,
    noise_process,
    stops,
    validation,
    offloaded_layers,
    reward_models,
    reward_limits,
    method_settings,
    masked_training,
    compiling,
    autoencoder,
    file_names,
)


def problems_of(config: Config) -> list[Problem]:
    """Return all problems that the rules find, in the order of the rules."""
    return [problem for rule in RULES for problem in rule(config)]
