"""Florence-2's captions through transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from modules.annotators.models.loading import load_pretrained
from modules.annotators.protocol import Captioner, CaptionSettings, Detail

TASKS: Mapping[Detail, str] = {
    "short": "<CAPTION>",
    "detailed": "<DETAILED_CAPTION>",
    "long": "<MORE_DETAILED_CAPTION>",
}
_MAX_NEW_TOKENS: Mapping[Detail, int] = {"short": 64, "detailed": 256, "long": 512}


@dataclass(frozen=True, slots=True)
class Florence:
    """Describes an image in the chosen detail."""

    model: Any
    processor: Any
    device: torch.device
    detail: Detail = "detailed"

    def caption(self, image: Image.Image) -> str:
        """Return one or several sentences."""
        inputs = self.processor(images=image, text=TASKS[self.detail], return_tensors="pt").to(self.device)
        with torch.inference_mode():
            tokens = self.model.generate(
                **inputs, max_new_tokens=_MAX_NEW_TOKENS[self.detail], do_sample=False, num_beams=3
            )
        return " ".join(self.processor.batch_decode(tokens, skip_special_tokens=True)[0].split())


def make(folder: Path, settings: CaptionSettings, device: str) -> Captioner:
    """Return the captioner in a folder. Raises DarkroomError where it cannot be loaded."""
    model, processor, place = load_pretrained(folder, "Florence2ForConditionalGeneration", device)
    return Florence(model, processor, place, settings.detail)
