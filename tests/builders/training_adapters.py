"""Training adapters of tiny flow models, in the names of the programs that write them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.builders.pipelines import load_tiny

Layers = dict[str, tuple[torch.Tensor, torch.Tensor]]


def adapter_layers(model: Path, *, blocks: str = "layers.", rank: int = 2, seed: int = 3) -> Layers:
    """Random A and B of every linear layer in the blocks of a model's denoiser, by its name in diffusers."""
    family = load_tiny(model)
    generator = torch.Generator().manual_seed(seed)
    linear = {n: m for n, m in family.denoiser.named_modules() if isinstance(m, torch.nn.Linear)}
    return {
        name: (
            0.2 * torch.randn(rank, layer.in_features, generator=generator),
            0.2 * torch.randn(layer.out_features, rank, generator=generator),
        )
        for name, layer in linear.items()
        if name.startswith(blocks)
    }


def write_adapter(path: Path, layers: Layers, form: str = "ai-toolkit") -> Path:
    """Write a LoRA as ai-toolkit, diffusers, kohya's trainers or ComfyUI's (with alphas) name its tensors."""
    tensors: dict[str, torch.Tensor] = {}
    for name, (down, up) in layers.items():
        match form:
            case "ai-toolkit" | "ComfyUI":
                tensors |= {f"diffusion_model.{name}.lora_A.weight": down, f"diffusion_model.{name}.lora_B.weight": up}
                if form == "ComfyUI":
                    tensors[f"diffusion_model.{name}.alpha"] = torch.tensor(float(len(down)))
            case "diffusers":
                tensors |= {f"transformer.{name}.lora_A.weight": down, f"transformer.{name}.lora_B.weight": up}
            case _:
                key = f"lora_unet_{name.replace('.', '_')}"
                tensors |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up}
                tensors[f"{key}.alpha"] = torch.tensor(float(len(down)))
    save_file({n: t.contiguous() for n, t in tensors.items()}, path)
    return path
