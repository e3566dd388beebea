"""BLIP's captioner through transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from modules.annotators.models.loading import load_pretrained
from modules.annotators.protocol import Captioner, CaptionSettings

_MAX_NEW_TOKENS = 75


@dataclass(frozen=True, slots=True)
class Blip:
    """Continues `initial`, which may be empty, to a sentence about an image."""

    model: Any
    processor: Any
    device: torch.device
    initial: str = ""

    def caption(self, image: Image.Image) -> str:
        """Return a sentence."""
        texts = {"text": self.initial} if self.initial.strip() else {}
        inputs = self.processor(images=image, **texts, return_tensors="pt").to(self.device)
        with torch.inference_mode():
            tokens = self.model.generate(**inputs, max_new_tokens=_MAX_NEW_TOKENS, do_sample=False, num_beams=1)
        return " ".join(self.processor.decode(tokens[0], skip_special_tokens=True).split())


def make(folder: Path, settings: CaptionSettings, device: str) -> Captioner:
    """Return the captioner in a folder. Raises DarkroomError where it cannot be loaded."""
    model, processor, place = load_pretrained(folder, "BlipForConditionalGeneration", device)
    return Blip(model, processor, place, settings.initial)
