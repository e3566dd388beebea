"""The guide to a training method as text: its requirements, the cost of a step, and the metrics to watch.

The needs and the metrics come from the method's record, the costs from how it samples with the current settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from modules.config.schema import Config
from modules.config.usage import (
    copies_originals,
    keeps_reference_copy,
    learns_from,
    method_of,
    rollout_of,
    settings_of_method,
    steps_per_group,
)
from modules.objectives.metrics import METRICS
from modules.objectives.rollout_facts import RolloutFacts
from modules.system.problem import count

NEEDS, COSTS, WATCH = "What it needs", "What it costs with these settings", "What to watch on the Run page"
_HELD_OUT = "held_out"
ADAPTER_COPY = "A copy of the adapter, the reference model; its memory is small."
WEIGHTS_COPY = "Memory for a copy of the weights, the reference model."
SAMPLING_ADAPTER_COPY = "A copy of the adapter, the sampling model; its memory is small."
SAMPLING_WEIGHTS_COPY = "Memory for a copy of the weights, the sampling model."
TWO_COPIES = "Memory for two copies of the weights, the sampling and the original model."
NO_COPY = "No memory for a reference model: it is the model without the adapter."


@dataclass(frozen=True, slots=True)
class Guide:
    """The guide of a config's method: its title, what it does, and three lists of sentences."""

    title: str
    summary: str
    needs: tuple[str, ...]
    costs: tuple[str, ...]
    watch: tuple[str, ...]


def guide_of(config: Config) -> Guide:
    """Return the guide of the config's method with its current settings."""
    spec = method_of(config)
    watch = tuple(f"{_label(name)}: {text[:1].lower()}{text[1:]}" for name, text in spec.guide.watch.items())
    is_standard = rollout_of(config) is None and learns_from(config) == "images"
    return Guide(spec.label, spec.help, spec.guide.needs, () if is_standard else tuple(_costs(config)), watch)


def _costs(config: Config) -> list[str]:
    training, facts = config.training, rollout_of(config)
    per_step = training.batch_size * training.accumulation_steps
    if facts is None:
        unit = {"pairs": "pair", "prompts": "prompt", "images": "image"}[learns_from(config)]
        lines = [f"{count(per_step, unit)} per step."]
        if _has_original(config):
            lines.append("A second pass without gradient, by the model as it was before training.")
        return [*lines, *_copy(config)]
    num_images = per_step * facts.samples_per_prompt
    each = "" if num_images == 1 else " each"
    rollout = f"{count(num_images, 'image')} sampled in {count(facts.steps, 'denoising step')}{each}"
    if facts.uses_own_images:
        rollout = f"{count(num_images, 'image')} of your concepts, noised and predicted once{each}"
    num_steps = steps_per_group(config)
    interval = "Each step" if num_steps == 1 else f"Every {num_steps} steps"
    return [f"{interval}: {rollout}.", _passes(config, facts, num_images), *_copy(config)]


def _passes(config: Config, facts: RolloutFacts, num_images: int) -> str:
    """Return the passes through the denoiser; guidance doubles them."""
    factor, guidance = (2, " (guidance doubles them)") if facts.guidance > 1 else (1, "")
    if facts.uses_own_images:
        return f"{_round_number(num_images * factor)} passes through the denoiser to train{guidance}."
    num_sampling = _round_number(num_images * (facts.sampling_passes or facts.steps) * factor)
    if facts.trained_timesteps:
        num_training = _round_number(num_images * facts.trained_timesteps)
        models = "each of the sampling and the original model" if _has_original(config) else "the sampling model"
        if facts.predicts_before_training:
            models = f"{models}, and by the model itself before"
        return (
            f"{num_sampling} passes through the denoiser to sample{guidance}. Each step then makes {num_training} to "
            f"train, and as many by {models}."
        )
    if not facts.trained_steps and not facts.gradient_steps:
        num_pairs = config.training.batch_size * config.training.accumulation_steps
        return (
            f"{num_sampling} passes through the denoiser to sample{guidance}. Each step then trains on up to "
            f"{count(num_pairs, 'pair')}, which the model and the reference model predict."
        )
    num_trained = facts.trained_steps or min(facts.gradient_steps, facts.steps)
    num_training = _round_number(num_images * num_trained * factor)
    has_reference = _has_reference(config) and facts.trained_steps
    reference = f", {num_training} by the reference model" if has_reference else ""
    up_to = "up to " if not facts.trained_steps else ""
    return f"{num_sampling} passes through the denoiser to sample, {up_to}{num_training} to train{reference}{guidance}."


def _copy(config: Config) -> list[str]:
    if not _has_reference(config):
        return []
    facts = rollout_of(config)
    if facts is not None and facts.trained_timesteps:
        if config.training.trains == "adapter":
            return [SAMPLING_ADAPTER_COPY]
        return [TWO_COPIES if _has_original(config) else SAMPLING_WEIGHTS_COPY]
    if config.training.trains == "adapter" and (keeps_reference_copy(config) or copies_originals(config)):
        return [ADAPTER_COPY]
    if config.training.trains == "adapter":
        return [NO_COPY]
    return [WEIGHTS_COPY]


def _has_reference(config: Config) -> bool:
    return _has_original(config) or keeps_reference_copy(config)


def _has_original(config: Config) -> bool:
    return method_of(config).needs_reference(settings_of_method(config))


def _label(name: str) -> str:
    return "Held-out reward" if name == _HELD_OUT else METRICS[name].label


def _round_number(number: int) -> str:
    """Return a number in three digits, with thousands separated."""
    digits = max(0, int(math.log10(number)) - 2) if number > 0 else 0
    return f"{round(number, -digits):,}"
