"""Generating samples without a run: from a base model with the config's embeddings, optionally with a LoRA file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from modules.adapters.kept_layers import attach_kept
from modules.adapters.protocol import Adapter, kind_of
from modules.adapters.registry import ADAPTERS, DEFAULT_ADAPTER
from modules.adapters.spec import AdapterSpec
from modules.adapters.stack import read_adapter
from modules.adapters.start import divide_content
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.families.protocol import ModelFamily
from modules.formats.adapter_layers import AdapterLayer
from trainer import phases
from trainer.callbacks.image_sampler import ImageSampler
from trainer.run.embeddings import attach_embeddings
from trainer.run.machine import machine_of
from trainer.run.model import prepare_parts
from trainer.run.placement import placement_of
from trainer.run.reading import load_family


def generate_samples(config: Config, lora: Path | None) -> list[Image.Image]:
    """Return one image per enabled prompt of a config. Raises DarkroomError for a LoRA of another model."""
    machine = machine_of(config.general, config.training.precision)
    family = load_family(
        config.model,
        config.part,
        fallback_dtype=config.training.fallback_train_dtype,
        quantized=quantized_parts(config),
    )
    prepare_parts(family, machine.precision)
    attach_embeddings(config, family, copies=None)
    if lora is not None:
        put_adapter_on(family, lora)
    placement = placement_of(family, phases.phase_facts(config), machine)
    image_sampler = ImageSampler(family, placement, machine.train_device, machine.precision)
    return image_sampler.sample([p for p in config.sampling.prompts if p.enabled], on_step=lambda: None)


def settings_of(spec: AdapterSpec, layers: Sequence[AdapterLayer]) -> Any:
    """Return settings that give the first layer of a file the factors and the alpha that it has."""
    shapes = {name: tuple(factor.shape) for name, factor in layers[0].factors.items()}
    settings = spec.settings() if spec.settings_as is None else spec.settings_as(spec.settings(), shapes)
    alpha = layers[0].alpha
    return settings if alpha is None or not hasattr(settings, "alpha") else settings.model_copy(update={"alpha": alpha})


def put_adapter_on(family: ModelFamily, path: Path) -> list[Adapter]:
    """Put everything in an adapter file on a family, and return the adapters: the layers that could be trained.

    Raises DarkroomError for a file of another model.
    """
    label = identify(path).facts.get("adapter", "").removeprefix("DoRA (").removesuffix(")")  # "DoRA (LoHa)" is a LoHa
    spec = next((adapter for adapter in ADAPTERS.values() if adapter.label == label), DEFAULT_ADAPTER)
    kind, trainable = kind_of(spec), spec.trainable
    assert trainable is not None  # only an adapter that is not supported yet has none
    modules = {name: part.module for name, part in family.parts.items()}
    content = read_adapter(path, family.lora_naming, modules)
    everything: dict[str, list[str]] = {}
    for layer in content.layers:
        everything.setdefault(layer.part, []).append(layer.path)
    start = divide_content(content, everything, trainable, keeps=True)
    attach_kept(modules, start.kept, where=start.where)
    adapters = [
        kind.attach(part, modules[part], [own.path for own in layers], settings_of(spec, layers), seed=0, start=layers)
        for part, layers in start.trained.items()
        if layers
    ]
    for adapter in adapters:
        adapter.module.eval()
    return adapters
