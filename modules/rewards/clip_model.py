"""A frozen CLIP model for rewards: normalised embeddings of images and captions, and their cosine similarity."""

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
        self._look = create_checkpointed_forward(
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
        pooled_BE = self._look(pixel_values=pixels_B3SS).pooler_output
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
            f"The CLIP model in {folder} cannot be read: {str(error).splitlines()[0]}",
            advice="The folder must hold config.json and model.safetensors in transformers' layout.",
        ) from error
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:  # the library would initialise them at random and continue
        raise DarkroomError(
            f"{len(missing)} weights are missing from the CLIP model in {folder}; the first is {missing[0]}.",
            advice="The download is damaged or belongs to another model; download it again.",
        )
    return model
