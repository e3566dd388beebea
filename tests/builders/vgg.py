"""A narrow VGG16 with random weights, and weights of LPIPS that fit it, as files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from modules.objectives.perceptual_files import STAGES

NARROW = (4, 4, 8, 8, 8)


def vgg_tensors(widths: tuple[int, ...] = NARROW) -> dict[str, torch.Tensor]:
    """The convolutions, named as torchvision does, and a layer of its classifier."""
    generator = torch.Generator().manual_seed(0)
    tensors, width_in = {"classifier.0.weight": torch.zeros(2, 2)}, 3
    for stage, width in zip(STAGES, widths, strict=True):
        for number in stage:
            scale = (2 / (9 * width_in)) ** 0.5
            tensors[f"features.{number}.weight"] = torch.randn(width, width_in, 3, 3, generator=generator) * scale
            tensors[f"features.{number}.bias"] = torch.rand(width, generator=generator) * 0.1
            width_in = width
    return tensors


def lpips_tensors(widths: tuple[int, ...] = NARROW) -> dict[str, torch.Tensor]:
    """The weights of the features, named as the package lpips does."""
    generator = torch.Generator().manual_seed(1)
    return {f"lin{n}.model.1.weight": torch.rand(1, w, 1, 1, generator=generator) for n, w in enumerate(widths)}


def write_perceptual_files(folder: Path) -> dict[str, str]:
    """Write both files and return the settings of a VAE's run that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(vgg_tensors(), folder / "vgg16.safetensors")
    save_file(lpips_tensors(), folder / "lpips.safetensors")
    return {"vgg_file": str(folder / "vgg16.safetensors"), "lpips_file": str(folder / "lpips.safetensors")}
