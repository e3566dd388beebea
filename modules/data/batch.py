"""A batch: what a method learns from in one forward pass. Everything in it is on the training device already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the window's side of the program knows the type and not torch
    import torch

    from modules.data.order import SampleIndex
    from modules.data.size_conditioning import SizeConditioning
    from modules.families.protocol import Conditioning, ModelFamily


@dataclass(frozen=True, eq=False)
class Batch:
    """A micro-batch of one size. B images; shapes: latents (B, C, H, W), loss weights (B,).

    `conditioning` is None where the captions are encoded while training, because their encoder learns;
    `size_conditionings` say how each image was fitted into its size. `group_samples` is the number of images in the
    whole accumulation group, by which the step's gradient is divided; `is_last_micro_batch` marks its last
    micro-batch. `step`, the group's first, and `micro_batch` count from 0 and name the random draws.
    """

    latents_BCHW: torch.Tensor
    captions: tuple[str, ...]
    conditioning: Conditioning | None
    loss_weights_B: torch.Tensor
    size_conditionings: Sequence[SizeConditioning]
    sample_indices: Sequence[SampleIndex]
    epoch: int
    step: int
    micro_batch: int
    group_samples: int
    is_last_micro_batch: bool

    @property
    def num_samples(self) -> int:
        """How many images are in it."""
        return len(self.captions)

    def conditioning_for(self, family: ModelFamily) -> Conditioning:
        """Return what the model is told of these images; encoded here, with gradients, where the encoder learns."""
        texts = self.conditioning or family.encode_prompts(self.captions)
        return family.with_size_conditioning(texts, self.size_conditionings)
