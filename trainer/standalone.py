"""Painting samples without a run: a base model, and a LoRA file on it."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from modules.adapters.lora import LoraAdapter, LoraShape, attach_lora
from modules.adapters.targets import target_layers
from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from modules.formats.lora_files import LoraLayerWeights, from_kohya
from modules.formats.safetensors_io import read_safetensors
from modules.memory.placement import Placement
from trainer import phases
from trainer.assemble import load_family, machine_of, phase_facts
from trainer.painting import Painter


def paint_samples(config: Config, lora: Path | None) -> list[Image.Image]:
    """Return the pictures of a config's enabled prompts. Raises DarkroomError for a LoRA of another model."""
    machine, family = machine_of(config), load_family(config)
    if lora is not None:
        put_lora_on(family, lora)
    facts = phase_facts(config)
    placement = Placement(
        {name: part.module for name, part in family.parts.items()},
        train_device=machine.train_device,
        temp_device=machine.temp_device,
        needed_in=lambda phase: phases.needed_parts(phase, family.spec, facts),
    )
    painter = Painter(family, placement, machine.train_device, machine.precision)
    return painter.paint([p for p in config.sampling.prompts if p.enabled], on_step=lambda: None)


def put_lora_on(family: ModelFamily, path: Path) -> list[LoraAdapter]:
    """Put the LoRA of a kohya file on a family, layer for layer, each with its own rank and alpha."""
    names = {
        family.lora_naming.kohya_name(part, name): (part, name)
        for part, loaded in family.parts.items()
        if loaded.spec.trainable
        for name in target_layers(
            loaded.module, loaded.spec.role, layers="all", custom_layers="", reaches=lambda name: True
        )
    }
    tensors, _ = read_safetensors(path)
    by_part: dict[str, list[LoraLayerWeights]] = {}
    for layer in from_kohya(tensors, names):
        by_part.setdefault(layer.part, []).append(layer)
    return [_put_on(family, part, layers) for part, layers in by_part.items()]


def _put_on(family: ModelFamily, part: str, layers: list[LoraLayerWeights]) -> LoraAdapter:
    shape = LoraShape(layers[0].rank, layers[0].alpha, 0.0, torch.float32)
    adapter = attach_lora(part, family.parts[part].module, [w.path for w in layers], shape, seed=0)
    parameters = adapter.parameters()
    with torch.no_grad():
        for layer in layers:
            parameters[f"{part}.{layer.path}.lora_A.default.weight"].copy_(layer.down)
            # Layers of other strength than the first are brought to its scale.
            scale = (layer.alpha / layer.rank) / (shape.alpha / shape.rank)
            parameters[f"{part}.{layer.path}.lora_B.default.weight"].copy_(layer.up * scale)
    family.parts[part].module.eval()
    return adapter
