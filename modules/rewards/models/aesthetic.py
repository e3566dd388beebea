"""LAION's aesthetic predictor v2: a small network that predicts a score of 1 to 10 from an image's CLIP embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from modules.formats.stored_tensors import read_stored
from modules.rewards.clip_model import ClipImageEncoder, read_clip
from modules.rewards.download import files_of
from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.settings import Scorer
from modules.system.errors import DarkroomError

# Indices of the linear layers in the published file; between them was dropout, which is inactive at inference.
_LAYERS = {"layers.0": 1024, "layers.2": 128, "layers.4": 64, "layers.6": 16, "layers.7": 1}


@dataclass(frozen=True, slots=True)
class Aesthetic:
    """Scores how pleasing an image is, 1 to 10, regardless of its caption."""

    image_encoder: ClipImageEncoder
    head: nn.Module
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,)."""
        rating_B1: torch.Tensor = self.head(self.image_encoder.images(images_B3PP))
        return rating_B1.squeeze(1)


def read_head(file: Path, *, width: int) -> nn.Module:
    """Return the network of a file: `width`-1024-128-64-16-1, linear layers without activations.

    Only weights are read, never code. Raises DarkroomError where the file contains something else.
    """
    stored, _ = read_stored(file)
    layers, width_in = [], width
    for name, width_out in _LAYERS.items():
        layer = nn.Linear(width_in, width_out)
        for parameter, value in layer.named_parameters():
            lazy = stored.get(f"{name}.{parameter}")
            if lazy is None or lazy.shape != tuple(value.shape):
                raise DarkroomError(
                    f"{file.name} is not an aesthetic predictor for this CLIP model: {name}.{parameter} should be "
                    f"{tuple(value.shape)} and is {'missing' if lazy is None else lazy.shape}.",
                    advice="Choose LAION's sac+logos+ava1-l14-linearMSE, with CLIP ViT-L/14 as the CLIP model.",
                )
            value.data = lazy.make().float()
        layers.append(layer)
        width_in = width_out
    return nn.Sequential(*layers).eval().requires_grad_(False)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where a file is missing or does not fit."""
    files = files_of(scorer, context)
    image_encoder = ClipImageEncoder(read_clip(files["clip_model"]), context)
    head = read_head(files["file"], width=image_encoder.width)
    context.place(head)
    return Aesthetic(image_encoder, head)
