"""Noise and timesteps."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import method_of, settings_of_method
from modules.config.schema import Config
from modules.config.sections.noise import Noise, timestep_sampling_of
from modules.settings.edit import get_path
from modules.settings.field import records_of
from modules.settings.walk import is_relevant
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
    """Yield the noise settings that change nothing: those of another that is off, or all with some methods."""
    noise, method = config.training.noise, method_of(config)
    if not method.adds_noise(settings_of_method(config)):
        changed = [
            r.label
            for r in records_of(Noise, _PATH)
            if is_relevant(config, r) and get_path(config, r.path) != r.default
        ]
        if changed:
            yield Problem(
                _PATH,
                f"{method.label} adds no noise of its own to images, so these settings have no effect: "
                f"{', '.join(changed)}.",
                "warning",
                "Reset them, or choose another method.",
            )
        return
    has_offset = noise.offset_weight > 0 or noise.offset_adaptive_scale != 0
    for name, is_without, of in (
        ("generalized_offset", noise.generalized_offset and not has_offset, "the offset noise"),
        ("offset_random_strength", noise.offset_random_strength and not noise.offset_weight, "the offset noise"),
        (
            "input_perturbation_random_strength",
            noise.input_perturbation_random_strength and not noise.input_perturbation,
            "the input perturbation",
        ),
    ):
        if is_without:
            label = next(r.label for r in records_of(Noise) if r.name == name)
            yield Problem(f"{_PATH}.{name}", f"{label} has no effect: {of} is 0.", "info")
    if noise.stratification != "off" and config.training.batch_size * config.training.accumulation_steps == 1:
        yield Problem(
            f"{_PATH}.stratification",
            "Stratified timesteps have no effect with one image per step.",
            "info",
            "Increase the batch size or the accumulation steps.",
        )
