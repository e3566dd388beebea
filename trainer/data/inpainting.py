"""The inpainting inputs of a batch: prepared on a loader thread, from the caches if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from modules.data.batch import InpaintingInputs
from modules.data.cache.inpainting import BLANK, inpainting_mask
from modules.data.order import SampleIndex
from modules.data.versions import ImageVersion
from modules.system.devices import Device, move_async
from trainer.data.masks import MaskReader, ignores_mask
from trainer.data.sources import LatentSource, Prepared


@dataclass(frozen=True, slots=True)
class PreparedInpainting:
    """A version of an image, `BLANK` where its mask is ignored, and what is read of it ahead of time."""

    version: ImageVersion
    latents: Prepared
    mask_1HW: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class InpaintingSource:
    """Delivers the inpainting masks and the latents of the conditioning images.

    A use of an image that ignores its mask is inpainted everywhere: the same uses as those of the loss (`MaskSource`).
    """

    latents: LatentSource
    masks: MaskReader
    device: Device
    run_seed: int
    unmasked_probability: float

    def prepare(self, version: ImageVersion, sample: SampleIndex) -> PreparedInpainting:
        """Read the mask and the conditioning image of a sample, as far as it needs no model.

        Raises OSError, ValueError or SyntaxError for a file that cannot be decoded.
        """
        if ignores_mask(self.run_seed, sample, probability=self.unmasked_probability):
            version = replace(version, variation=BLANK)
            return PreparedInpainting(version, self.latents.prepare(version), None)
        return PreparedInpainting(version, self.latents.prepare(version), self.masks.read(version))

    def deliver(self, prepared: Sequence[PreparedInpainting]) -> InpaintingInputs:
        """Return the inputs of a batch, on the training device, in the dtype of its latents."""
        latents_BCHW = self.latents.deliver([p.version for p in prepared], [p.latents for p in prepared])
        everywhere_1HW = torch.ones(1, *latents_BCHW.shape[-2:])
        masks = [everywhere_1HW if p.version.variation == BLANK else self._mask(p) for p in prepared]
        masks_B1HW = torch.stack(masks).to(latents_BCHW.dtype)
        return InpaintingInputs(move_async(masks_B1HW, self.device), latents_BCHW)

    def _mask(self, prepared: PreparedInpainting) -> torch.Tensor:
        mask_1HW = prepared.mask_1HW
        return inpainting_mask(self.masks.rebuilt(prepared.version) if mask_1HW is None else mask_1HW)
