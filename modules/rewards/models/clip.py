"""Reward models that look at an image through CLIP: CLIP similarity, and LAION's aesthetic predictor.

The preprocessing is differentiable and in torch alone: resize, crop or pad, normalise. It equals transformers'
CLIPImageProcessor, which uses Pillow, except for its rounding to 256 levels: within 1.1 levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn import functional
from transformers.models.clip.modeling_clip import CLIPEncoderLayer, CLIPModel
from transformers.utils.logging import disable_progress_bar

from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.formats.stored_tensors import read_stored
from modules.memory.checkpointing import create_checkpointed_forward
from modules.rewards.models.open_clip import read_open_clip
from modules.rewards.protocol import Reward, RewardContext, files_of
from modules.rewards.settings import Scorer
from modules.system.devices import move
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason

Fit = Literal["crop", "pad"]

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)


def clip_input(images_B3PP: torch.Tensor, *, side_px: int, fit: Fit = "crop") -> torch.Tensor:
    """Return images in [0, 1] as squares of `side_px`, with CLIP's normalisation.

    "crop": resizes the shorter side and crops the centre, as OpenAI does. "pad": resizes the longer side and pads the
    image with black on both sides, as the authors of HPS v2 do. Bicubic with antialiasing and Pillow's filter
    (a = -0.5); overshoot is clamped, as in Pillow.
    """
    height_px, width_px = images_B3PP.shape[-2:]
    if fit == "pad":
        scale = side_px / max(height_px, width_px)
        size = (round(height_px * scale), round(width_px * scale))
    else:
        shorter_px = min(height_px, width_px)
        size = (side_px * height_px // shorter_px, side_px * width_px // shorter_px)
    if size != (height_px, width_px):
        # On a GPU the backward pass of interpolate has no deterministic implementation.
        needs_products = torch.are_deterministic_algorithms_enabled() and images_B3PP.is_cuda
        resized = _resize_by_products(images_B3PP, size) if needs_products else _resize(images_B3PP, size)
        images_B3PP = resized.clamp(0, 1)
    square_B3SS = _pad_to_square(images_B3PP, side_px) if fit == "pad" else _crop_centre(images_B3PP, side_px)
    mean_3, std_3 = (torch.tensor(v, dtype=square_B3SS.dtype, device=square_B3SS.device) for v in (_MEAN, _STD))
    return (square_B3SS - mean_3[:, None, None]) / std_3[:, None, None]


def _resize(images_B3PP: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return functional.interpolate(images_B3PP, size, mode="bicubic", antialias=True, align_corners=False)


def _resize_by_products(images_B3PP: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return the same as `_resize`, except for rounding, by matrix products: the filter is linear and separable."""
    rows_HP, columns_WP = (
        _resize(torch.eye(old_px, dtype=images_B3PP.dtype, device=images_B3PP.device)[None, None], (new_px, old_px))[
            0, 0
        ]
        for old_px, new_px in zip(images_B3PP.shape[-2:], size, strict=True)
    )
    return rows_HP @ images_B3PP @ columns_WP.T


def _crop_centre(images_B3PP: torch.Tensor, side_px: int) -> torch.Tensor:
    top_px, left_px = ((length_px - side_px) // 2 for length_px in images_B3PP.shape[-2:])
    return images_B3PP[..., top_px : top_px + side_px, left_px : left_px + side_px]


def _pad_to_square(images_B3PP: torch.Tensor, side_px: int) -> torch.Tensor:
    more_px, wider_px = (side_px - length_px for length_px in images_B3PP.shape[-2:])
    top_px, left_px = more_px // 2, wider_px // 2
    return functional.pad(images_B3PP, (left_px, wider_px - left_px, top_px, more_px - top_px))


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
        self._encode_image = create_checkpointed_forward(
            self.model.vision_model,
            train_device=context.device,
            temp_device=context.temp_device,
            mode="block",
            block_types=(CLIPEncoderLayer,),
        )

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
    disable_progress_bar()
    try:
        model, loading = CLIPModel.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            dtype=torch.float32,
            trust_remote_code=False,
        )
    except (OSError, ValueError, RuntimeError, TypeError, SafetensorError) as error:
        raise DarkroomError(
            f"The CLIP model in {folder} cannot be read: {plain_reason(error)}.",
            advice="The folder must hold config.json and model.safetensors in transformers' layout.",
        ) from error
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:  # the library would initialise them at random and continue
        raise DarkroomError(
            f"{len(missing)} weights are missing from the CLIP model in {folder}; the first is {missing[0]}.",
            advice="The download is damaged or belongs to another model; download it again.",
        )
    return model


@dataclass(frozen=True, slots=True)
class ClipSimilarity:
    """Scores an image by `factor` times its cosine similarity to its caption."""

    image_encoder: ClipImageEncoder
    factor: float = 1.0
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,)."""
        return self.factor * self.image_encoder.cosines(images_B3PP, prompts)


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
