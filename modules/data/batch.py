"""A batch: the input of one training forward pass. Everything in it is already on the training device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modules.data.conditioning import Conditioning, DeliveredConditioning, PromptEncoder, complete_conditioning

if TYPE_CHECKING:  # the window's process imports the type but never torch
    from pathlib import Path

    import torch

    from modules.data.conditioning import SizeConditioning
    from modules.data.samples import SampleIndex


@dataclass(frozen=True, eq=False)
class Batch:
    """A micro-batch of images of one size, or of clips of one size and number of frames.

    B images; shapes: latents (B, C, H, W), loss weights (B,). The latents of clips are (B, C, F, H, W), and their masks
    (B, 1, 1, H, W).
    """

    latents_BCHW: torch.Tensor
    captions: tuple[str, ...]
    conditioning: DeliveredConditioning
    """Lacks the captions, some or all (None), that are encoded during the step because their encoder is trained."""
    loss_weights_B: torch.Tensor
    size_conditionings: Sequence[SizeConditioning]
    """How each image was resized and cropped."""
    sample_indices: Sequence[SampleIndex]
    epoch: int
    """The epoch that it is trained in, to which some samples of a merged batch do not belong."""
    step: int
    """The first step of its accumulation group, from 0. With `micro_batch` it selects the random seeds."""
    micro_batch: int
    """Its number in the accumulation group, from 0."""
    group_samples: int
    """The number of images in the whole accumulation group, by which the step's gradient is divided."""
    is_last_micro_batch: bool
    """Whether it is the last one of its accumulation group."""
    empty_for: tuple[frozenset[int], ...] = ()
    """For each image the indices of the text encoders that get the empty prompt; then `conditioning` has one more entry
    at the end, for the empty prompt. May be empty.
    """
    masks_B1HW: torch.Tensor | None = None
    """1 where an image is trained with full weight and 0 where it has the unmasked weight, at the size of the latents.

    None without masked training.
    """
    area_weights_B1HW: torch.Tensor | None = None
    """The weights of the errors that follow from the masks."""
    prior_weights_B1HW: torch.Tensor | None = None
    """The weights of the errors against the original model's prediction, which are added to the loss; None for none."""
    prior_samples: tuple[bool, ...] = ()
    """For each image whether its target is the prediction of the original model. May be empty."""
    rejected_latents_BCHW: torch.Tensor | None = None
    """The latents of pairs' rejected images, whose chosen images the others are; None without pairs.

    Both have the same augmentations and the same size conditioning.
    """
    same_pairs: tuple[bool, ...] = ()
    """For each pair whether both images are the same, from which nothing can be learned. May be empty."""
    pair_files: tuple[Path | None, ...] = ()
    """For each pair the file of its chosen image, if that is trained as it is in the file: whole, in its size, upright.

    May be empty.
    """
    group_start: int = 0
    """The number of images in the earlier micro-batches of its accumulation group."""
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Further inputs of the model by name (`ModelInput`), in the dtype of the latents; most models have none."""
    pixels_B3PP: torch.Tensor | None = None
    """The images themselves, float32 in [-1, 1], for a method that trains on pixels; None otherwise.

    The latents are zeros then, there is no conditioning, and the masks have the size of the images.
    """
    first_row: int = 0
    """The place of its first image in a micro-batch that several processes share."""
    micro_batch_samples: int = 0
    """The number of images in a micro-batch that several processes share; 0 if it is not shared."""
    padded_like: tuple[str, ...] = ()
    """All captions of a shared micro-batch: its own are padded to the longest of them."""
    counts: bool = True
    """Whether its loss has a weight. Without it, other processes train its images, too."""

    @property
    def num_samples(self) -> int:
        """The number of images in it."""
        return len(self.captions)

    @property
    def num_counted(self) -> int:
        """The number of images that count in the loss of the step."""
        return self.num_samples if self.counts else 0

    @property
    def needs_prior(self) -> bool:
        """Whether its loss contains predictions of the original model."""
        return self.prior_weights_B1HW is not None or any(self.prior_samples)

    @property
    def is_prior_only(self) -> bool:
        """Whether every image has the original model's prediction as its target: a new adapter gets no gradient."""
        return bool(self.prior_samples) and all(self.prior_samples)

    def conditioning_for(self, encoder: PromptEncoder) -> Conditioning:
        """Return the conditioning of these images; captions whose encoder is trained are encoded here, with gradients.

        `encoder` is the model family.
        """
        if not self.empty_for:
            texts = complete_conditioning(self.conditioning, self.captions, encoder, self.padded_like)
        else:
            given = complete_conditioning(self.conditioning, (*self.captions, ""), encoder, self.padded_like)
            of_samples, empty = given.select(range(self.num_samples)), given.select([self.num_samples])
            texts = encoder.with_empty_prompts(of_samples, self.empty_for, empty)
        return encoder.with_size_conditioning(texts, self.size_conditionings)
