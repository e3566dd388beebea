"""Painting samples without a run: a base model, and a LoRA file on it."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from modules.adapters.lora import LoraAdapter, LoraShape, attach_lora
from modules.adapters.stored_lora import fill, read_lora
from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from modules.formats.lora_files import LoraLayerWeights
from trainer import phases
from trainer.callbacks.image_sampler import ImageSampler
from trainer.run.machine import machine_of
from trainer.run.model import load_family, placement_of, prepare_parts


def generate_samples(config: Config, lora: Path | None) -> list[Image.Image]:
    """Return the images of a config's enabled prompts. Raises DarkroomError for a LoRA of another model."""
    machine = machine_of(config.general, config.training.precision)
    family = load_family(config.model, config.part)
    prepare_parts(family, machine.precision)
    if lora is not None:
        put_lora_on(family, lora)
    placement = placement_of(family, phases.phase_facts(config), machine)
    image_sampler = ImageSampler(family, placement, machine.train_device, machine.precision)
    return image_sampler.sample([p for p in config.sampling.prompts if p.enabled], on_step=lambda: None)


def put_lora_on(family: ModelFamily, path: Path) -> list[LoraAdapter]:
    """Put a LoRA file on a family, each part with the rank of its layers. Raises DarkroomError for another model's."""
    modules = {name: part.module for name, part in family.parts.items()}
    by_part = read_lora(path, family.lora_naming, modules)
    return [_put_on(family, part, layers, path.name) for part, layers in by_part.items()]


def _put_on(family: ModelFamily, part: str, layers: list[LoraLayerWeights], where: str) -> LoraAdapter:
    shape = LoraShape(layers[0].rank, layers[0].alpha, 0.0, torch.float32)
    adapter = attach_lora(part, family.parts[part].module, [w.path for w in layers], shape, seed=0)
    fill(adapter, layers, where=where)
    family.parts[part].module.eval()
    return adapter
