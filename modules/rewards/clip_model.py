"""A frozen CLIP model that rewards look through: images and captions as directions that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.nn import functional
from transformers.models.clip.modeling_clip import CLIPEncoderLayer, CLIPModel
from transformers.utils.logging import disable_progress_bar

from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.memory.checkpointing import create_checkpointed_forward
from modules.rewards.clip_input import Fit, clip_input
from modules.rewards.protocol import RewardContext
from modules.system.devices import move
from modules.system.errors import DarkroomError


class ClipImageEncoder:
    """CLIP in float32 on the training device. Its image half is checkpointed block by block: it would otherwise keep
    more than the chain of a whole rollout.
    """

    def __init__(self, model: Any, context: RewardContext, *, fit: Fit = "crop") -> None:
        """Take over a `CLIPModel`, which is frozen here; `fit` is how it is shown what is no square."""
        self.model = model.float().eval().requires_grad_(False)
        self.model._apply(lambda tensor: move(tensor, context.device))
        self._device = context.device
        self._fit: Fit = fit
        self._tokenizer = load_clip_tokenizer(None)
        self._look = create_checkpointed_forward(
            self.model.vision_model,
            train_device=context.device,
            temp_device=context.temp_device,
            mode="block",
            block_types=(CLIPEncoderLayer,),
        )

    @property
    def width(self) -> int:
        """The length of its directions."""
        return int(self.model.config.projection_dim)

    @property
    def scale(self) -> float:
        """What cosines are multiplied by where they are compared (its logit scale): 100 in published models."""
        return float(self.model.logit_scale.detach().exp())

    def images(self, images_B3PP: torch.Tensor) -> torch.Tensor:
        """Return the directions (B, D) of images in [0, 1], of length 1, with gradient."""
        pixels_B3SS = clip_input(images_B3PP, side_px=int(self.model.config.vision_config.image_size), fit=self._fit)
        pooled_BE = self._look(pixel_values=pixels_B3SS).pooler_output
        return functional.normalize(self.model.visual_projection(pooled_BE), dim=-1)

    @torch.no_grad()
    def captions(self, prompts: Sequence[str]) -> torch.Tensor:
        """Return the directions (B, D) of captions, of length 1. What is longer than 75 tokens is cut off there."""
        ids_BL = torch.tensor([self._tokenizer.chunks(prompt)[0] for prompt in prompts])
        pooled_BE = self.model.text_model(input_ids=move(ids_BL, self._device)).pooler_output
        return functional.normalize(self.model.text_projection(pooled_BE), dim=-1)

    def cosines(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return how near each image is to its caption, -1 to 1, shape (B,)."""
        return (self.images(images_B3PP) * self.captions(prompts)).sum(dim=-1)


def read_clip(folder: Path) -> Any:
    """Return the `CLIPModel` of a folder in transformers' layout. Only weights are read, never code.

    Raises DarkroomError where the folder does not hold one, or lacks weights.
    """
    disable_progress_bar()
    try:
        model, loading = CLIPModel.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, output_loading_info=True, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError, TypeError, SafetensorError) as error:
        raise DarkroomError(
            f"No CLIP model can be read from {folder}: {str(error).splitlines()[0]}",
            advice="The folder must hold config.json and model.safetensors in transformers' layout.",
        ) from error
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:  # the library would draw them at random and go on
        raise DarkroomError(
            f"The CLIP model in {folder} lacks {len(missing)} of its weights; the first is {missing[0]}.",
            advice="The download is damaged or belongs to another model; download it again.",
        )
    return model
