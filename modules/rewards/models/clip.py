"""Reward models that look at an image through CLIP: CLIP similarity, and LAION's aesthetic predictor.

The preprocessing equals transformers' CLIPImageProcessor, which uses Pillow, except for its rounding to 256 levels:
within 1.1 levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.clip.modeling_clip import CLIPEncoderLayer, CLIPModel

from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.formats.stored_tensors import read_stored
from modules.rewards.models.open_clip import read_open_clip
from modules.rewards.models.pretrained import Fit, read_pretrained, square_input
from modules.rewards.protocol import Reward, RewardContext, files_of
from modules.rewards.settings import Scorer
from modules.system.devices import move
from modules.system.errors import DarkroomError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def clip_input(images_B3PP: torch.Tensor, *, side_px: int, fit: Fit = "crop") -> torch.Tensor:
    """Return images in [0, 1] as squares of `side_px`, with CLIP's normalisation.

    "crop" is what OpenAI does, "pad" (with black) what the authors of HPS v2 do.
    """
    return square_input(images_B3PP, side_px=side_px, mean=CLIP_MEAN, std=CLIP_STD, fit=fit)


class ClipImageEncoder:
    """CLIP in float32 on the training device. The image encoder is checkpointed block by block: otherwise its
    activations would take more memory than a whole rollout.
    """

    def __init__(self, model: Any, context: RewardContext, *, fit: Fit = "crop") -> None:
        """Wrap and freeze a `CLIPModel`; `fit` sets whether images that are not square are cropped or padded."""
        self.model = model.float().eval().requires_grad_(False)
        context.place(self.model)
        self._device = context.device
        self._fit: Fit = fit
        self._tokenizer = load_clip_tokenizer(None)
        self._encode_image = context.with_checkpointing(self.model.vision_model, CLIPEncoderLayer)

    @property
    def width(self) -> int:
        """The size of its embeddings."""
        return int(self.model.config.projection_dim)

    @property
    def scale(self) -> float:
        """The factor on cosines when they are compared (`exp(logit_scale)`): 100 in published models."""
        return float(self.model.logit_scale.detach().exp())

    def images(self, images_B3PP: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (B, D) of images in [0, 1], normalised to length 1, with gradient."""
        pixels_B3SS = clip_input(images_B3PP, side_px=int(self.model.config.vision_config.image_size), fit=self._fit)
        pooled_BE = self._encode_image(pixel_values=pixels_B3SS).pooler_output
        return functional.normalize(self.model.visual_projection(pooled_BE), dim=-1)

    @torch.no_grad()
    def captions(self, prompts: Sequence[str]) -> torch.Tensor:
        """Return the embeddings (B, D) of captions, normalised to length 1. Captions are truncated to 75 tokens."""
        ids_BL = torch.tensor([self._tokenizer.chunks(prompt)[0] for prompt in prompts])
        pooled_BE = self.model.text_model(input_ids=move(ids_BL, self._device)).pooler_output
        return functional.normalize(self.model.text_projection(pooled_BE), dim=-1)

    def cosines(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the cosine similarity of each image and its caption, -1 to 1, shape (B,)."""
        return (self.images(images_B3PP) * self.captions(prompts)).sum(dim=-1)


def read_clip(folder: Path) -> Any:
    """Return the `CLIPModel` of a folder in transformers' layout. Only weights are read, never code.

    Raises DarkroomError where the folder does not hold one, or lacks weights.
    """
    return read_pretrained(CLIPModel, folder, "CLIP model")


@dataclass(frozen=True, slots=True)
class ClipSimilarity:
    """Scores an image by `factor` times its cosine similarity to its caption."""

    image_encoder: ClipImageEncoder
    factor: float = 1.0
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,)."""
        return self.factor * self.image_encoder.cosines(images_B3PP, prompts)


def make_clip(folder: Path, context: RewardContext) -> ClipImageEncoder:
    """Return the encoder of a folder in transformers' layout, loaded. Raises DarkroomError without a whole model."""
    return ClipImageEncoder(read_clip(folder), context)


def make_clip_score(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the CLIP score, the plain cosine, loaded. Raises DarkroomError where its model is missing."""
    return ClipSimilarity(ClipImageEncoder(read_clip(files_of(scorer, context)["file"]), context))


def make_pickscore(scorer: Scorer, context: RewardContext) -> Reward:
    """Return PickScore, `exp(logit_scale) cos` as the authors define it. Raises DarkroomError without its model."""
    image_encoder = ClipImageEncoder(read_clip(files_of(scorer, context)["file"]), context)
    return ClipSimilarity(image_encoder, image_encoder.scale)


def make_hps(scorer: Scorer, context: RewardContext) -> Reward:
    """Return HPS v2, the plain cosine, loaded. Raises DarkroomError where its file is missing."""
    return ClipSimilarity(ClipImageEncoder(read_open_clip(files_of(scorer, context)["file"]), context, fit="pad"))


# LAION's aesthetic predictor v2: a small network that predicts a score of 1 to 10 from an image's CLIP embedding.

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


def make_aesthetic(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where a file is missing or does not fit."""
    files = files_of(scorer, context)
    image_encoder = ClipImageEncoder(read_clip(files["clip_model"]), context)
    head = read_head(files["file"], width=image_encoder.width)
    context.place(head)
    return Aesthetic(image_encoder, head)
