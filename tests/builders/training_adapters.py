"""Training adapters of tiny models, and copies of these models as if they had been distilled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from modules.families.parts.single_file.models import CONFIGS_KEY
from tests.builders.configs import family_of
from tests.builders.pipelines import load_tiny

Layers = dict[str, tuple[torch.Tensor, torch.Tensor]]
WEIGHTS = "diffusion_pytorch_model.safetensors"


def adapter_layers(model: Path, *, rank: int = 2, seed: int = 3) -> Layers:
    """Random A and B of the linear layers in the blocks of a model's denoiser, by their names in diffusers."""
    spec = load_tiny(model).spec
    presets = spec.denoiser.model.layers
    blocks = presets.get("blocks", presets["attention_mlp"])
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (
            0.2 * torch.randn(rank, layer.in_features, generator=generator),
            0.2 * torch.randn(layer.out_features, rank, generator=generator),
        )
        for name, layer in load_tiny(model).parts[spec.denoiser.name].module.named_modules()
        if isinstance(layer, torch.nn.Linear) and blocks.takes(name)
    }


def write_adapter(path: Path, layers: Layers, prefix: str = "transformer", *, model: Path | None = None) -> Path:
    """Write a LoRA in diffusers' names, as most trainers do, with the size of a tiny model in its metadata."""
    tensors = {f"{prefix}.{name}.lora_A.weight": down for name, (down, _) in layers.items()}
    tensors |= {f"{prefix}.{name}.lora_B.weight": up for name, (_, up) in layers.items()}
    save_file(tensors, path, None if model is None else {CONFIGS_KEY: load_tiny(model).lora_naming.own_configs})
    return path


def write_distilled(folder: Path, model: Path, **scheduler: object) -> Path:
    """Write a copy of a model whose denoiser has other weights, and its scheduler config other values."""
    shutil.copytree(model, folder)
    family = load_tiny(model, family_of(model))
    file, generator = folder / family.spec.denoiser.name / WEIGHTS, torch.Generator().manual_seed(9)
    weights = {
        name: w + 0.5 * w.std(unbiased=False) * torch.randn(w.shape, generator=generator)
        for name, w in load_file(file).items()
    }
    save_file(weights, file, {"format": "pt"})
    (folder / "scheduler").mkdir(exist_ok=True)  # a modular pipeline may make its own
    config = {**family.scheduler_config(), **scheduler}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    return folder
