"""CLIPSeg through transformers: a probability map for each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from modules.annotators.models.loading import load_pretrained
from modules.annotators.models.u2net import resized
from modules.annotators.protocol import Masker, MaskSettings, SoftMask
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class ClipSeg:
    """Masks what any of the texts describes."""

    model: Any
    processor: Any
    device: torch.device
    prompts: Sequence[str]

    def mask(self, image: Image.Image) -> SoftMask:
        """Return the largest of the texts' probabilities."""
        inputs = self.processor(
            text=list(self.prompts), images=[image] * len(self.prompts), padding=True, return_tensors="pt"
        ).to(self.device)
        with torch.inference_mode():
            logits = self.model(**inputs).logits
        found = logits.float().reshape(len(self.prompts), *logits.shape[-2:]).sigmoid().amax(0)
        return resized(np.asarray(found.cpu().numpy(), np.float32), image.size)


def make(folder: Path | None, settings: MaskSettings, device: str) -> Masker:
    """Return the masker in a folder. Raises DarkroomError without a text, or where it cannot be loaded."""
    assert folder is not None
    if not settings.prompts:
        raise DarkroomError("CLIPSeg needs a text that describes what to mask.", advice="Enter one, such as: a face.")
    model, processor, place = load_pretrained(folder, "CLIPSegForImageSegmentation", device)
    return ClipSeg(model, processor, place, settings.prompts)
