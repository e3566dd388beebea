"""The model of a config as it is before any training, ready to sample without a run."""

from __future__ import annotations

from collections.abc import Callable

from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from modules.memory.placement import Placement
from trainer import phases
from trainer.callbacks.image_sampler import SampledModel
from trainer.run.embeddings import attach_embeddings
from trainer.run.machine import Machine
from trainer.run.model import choose_attention, prepare_parts, sampling_model_of
from trainer.run.placement import placement_of
from trainer.run.reading import load_family
from trainer.run.sampled_model import place_sampled_model


def load_untrained(
    config: Config, machine: Machine, on_bytes: Callable[[float, float], None] | None = None
) -> tuple[ModelFamily, Placement, SampledModel | None]:
    """Return the model of a config with its embeddings, its placement, and the model of samples if that differs.

    `on_bytes(done, total)` reports a download. Raises DarkroomError for a model that cannot be read.
    """
    quantized = quantized_parts(config)
    family = load_family(
        config.model,
        config.part,
        on_bytes,
        fallback_dtype=config.training.fallback_train_dtype,
        quantized=quantized,
    )
    other = sampling_model_of(config, family, quantized, on_bytes)
    prepare_parts(family, machine.precision)
    choose_attention(family, config.training.attention, machine)
    attach_embeddings(config, family, copies=None)
    for part in family.parts.values():
        part.module.eval().requires_grad_(False)
    placement = placement_of(family, phases.phase_facts(config), machine)
    return family, placement, place_sampled_model(family, placement, None, other)[0]
