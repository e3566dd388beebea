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

    `conditioning` lacks the captions that are encoded during the step because their text encoder is trained: some of
    them, or all (None). `size_conditionings` describe how each image was resized and cropped. `epoch` is the one it is
    trained in, to which some samples of a merged batch do not belong. `group_samples` is the number of images in the
    whole accumulation group, by which the step's gradient is divided; `is_last_micro_batch` marks its last micro-batch.
    `step`, the group's first, and `micro_batch` count from 0 and select the random seeds. `masks_B1HW`, at the size of
    the latents, are 1 where an image is trained with full weight and 0 where it has the unmasked weight;
    `area_weights_B1HW` are the resulting weights of the errors. Both are None without masked training. `prior_samples`
    is empty, or has for each image whether its target is the prediction of the original model. `prior_weights_B1HW`,
    shaped like the masks, are the weights of the errors against that prediction that are added to the loss; None adds
    none. `rejected_latents_BCHW`, shaped like the latents, belong to the rejected images of pairs, whose chosen images
    the others are: with the same augmentations and the same size conditioning. None without pairs. `same_pairs` is
    empty, or has for each pair whether both images are the same, from which nothing can be learned. `pair_files` is
    empty, or has for each pair the file of its chosen image if that is trained as it is in the file: whole, in its
    size, upright. `group_start` is the number of the group's images in the micro-batches before it. `empty_for` is
    empty, or has the indices of the text encoders that get the empty prompt for each image; then `conditioning` has one
    more entry at the end, for the empty prompt. `inputs` are the further inputs of the model by name (`ModelInput`), in
    the dtype of the latents; most models have none. `pixels_B3PP`, float32 in [-1, 1], are the images themselves for a
    method that trains on pixels: then the latents are zeros, there is no conditioning, and the masks have the size of
    the images. None otherwise. Where several processes share a micro-batch, this one's images are those from
    `first_row` on, of `micro_batch_samples` in all; 0 if the micro-batch is not shared. Its captions are padded to the
    longest of `padded_like`, all captions of the micro-batch. If it does not `count`, other processes train its images,
    too, and its loss has no weight.
    """

    latents_BCHW: torch.Tensor
    captions: tuple[str, ...]
    conditioning: DeliveredConditioning
    loss_weights_B: torch.Tensor
    size_conditionings: Sequence[SizeConditioning]
    sample_indices: Sequence[SampleIndex]
    epoch: int
    step: int
    micro_batch: int
    group_samples: int
    is_last_micro_batch: bool
    empty_for: tuple[frozenset[int], ...] = ()
    masks_B1HW: torch.Tensor | None = None
    area_weights_B1HW: torch.Tensor | None = None
    prior_weights_B1HW: torch.Tensor | None = None
    prior_samples: tuple[bool, ...] = ()
    rejected_latents_BCHW: torch.Tensor | None = None
    same_pairs: tuple[bool, ...] = ()
    pair_files: tuple[Path | None, ...] = ()
    group_start: int = 0
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    pixels_B3PP: torch.Tensor | None = None
    first_row: int = 0
    micro_batch_samples: int = 0
    padded_like: tuple[str, ...] = ()
    counts: bool = True

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
