"""The passes of a vision-language model as a text encoder, for the memory estimate to trace."""

from __future__ import annotations

from typing import Any

import torch

from modules.families.parts.traced_passes import TracedPasses
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def seeing_passes(encoder: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward passes of the language model and of the vision encoder of a `Qwen2_5_VLModel`.

    The vision encoder sees the largest image that the family reads with a caption, as one window.
    """
    vision = encoder.visual
    config, most = vision.config, max(images.num_tokens for images in spec.caption_images.values())
    num_patches = most * config.spatial_merge_size**2
    patch_values = config.in_channels * config.temporal_patch_size * config.patch_size**2

    def tokens(size: PassSize) -> dict[str, Any]:
        return {"input_ids": torch.empty(size.batch, size.tokens, dtype=torch.long)}

    def patches(size: PassSize) -> dict[str, Any]:
        return {
            "hidden_states": torch.empty(num_patches, patch_values),
            "position_ids": torch.empty(num_patches, 2, dtype=torch.long),
            "window_index": torch.empty(most, dtype=torch.long),
        }

    def see(**inputs: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([0, num_patches], dtype=torch.int32, device="cpu")  # the class reads the numbers
        seen: torch.Tensor = vision(**inputs, grid_thw=None, cu_seqlens=ends, cu_window_seqlens=ends).pooler_output
        return seen

    return {"forward": TracedPass(encoder.language_model, tokens), "vision": TracedPass(see, patches)}
