"""Noise and timesteps."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import method_of, settings_of_method
from modules.config.schema import Config
from modules.config.sections.noise import timestep_sampling_of
from modules.system.problem import Problem

_PATH = "training.noise"


def noising_strengths(config: Config) -> Iterator[Problem]:
    """Yield a problem if no timestep lies between the lowest and the highest noising strength."""
    noise = config.training.noise
    if noise.min_strength >= noise.max_strength:
        yield Problem(
            f"{_PATH}.min_strength",
            f"The min noising strength of {noise.min_strength:g} is not below the max of {noise.max_strength:g}: no "
            "timestep is left to train.",
            advice="Lower the min noising strength, or raise the max.",
        )


def timestep_distribution(config: Config) -> Iterator[Problem]:
    """Yield a problem if the noising weight and bias give no distribution."""
    wrong = timestep_sampling_of(config.training.noise).problem
    if wrong:
        yield Problem(
            f"{_PATH}.noising_weight",
            f"The timestep distribution cannot be used: {wrong}.",
            advice="Change the noising weight and bias, or choose another timestep distribution.",
        )


def noise_without_effect(config: Config) -> Iterator[Problem]:
    """Yield the noise settings whose values change nothing, although their conditions hold."""
    noise = config.training.noise
    if not method_of(config).adds_noise(settings_of_method(config)):
        return
    if noise.stratification != "off" and config.training.batch_size * config.training.accumulation_steps == 1:
        yield Problem(
            f"{_PATH}.stratification",
            "Stratified timesteps have no effect with one image per step.",
            "info",
            "Increase the batch size or the accumulation steps.",
        )
    if noise.pyramid_iterations == 1 or (noise.pyramid_iterations and not noise.pyramid_discount):
        yield Problem(
            f"{_PATH}.pyramid_iterations",
            "Pyramid noise has no effect: its first level is the plain noise, and no further level counts.",
            "info",
            "Set 6 to 10 levels and a discount of 0.1 to 0.3, or 0 levels.",
        )
    if noise.offset_adaptive_scale < 0 and not noise.offset_weight:
        yield Problem(
            f"{_PATH}.offset_adaptive_scale",
            "A negative adaptive offset scale has no effect: it only lowers the offset noise, which is 0.",
            "info",
            "Set an offset noise, or a scale above 0.",
        )
