"""BLIP and Florence-2, which write captions, and CLIPSeg, which masks what a text describes, through transformers.

Models are loaded from a folder; only weights are read, never code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from modules.annotators.onnx_models import resize_mask
from modules.annotators.protocol import Captioner, CaptionSettings, Detail, Masker, MaskSettings, SoftMask, split_list
from modules.formats.stored_tensors import read_stored
from modules.system.devices import resolve_device
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason

_PICKLED = "pytorch_model.bin"


def load_pretrained(folder: Path, model_class: str, device: str) -> tuple[Any, Any, torch.device]:
    """Return a model of a class of transformers, its processor, and the device that the model is on.

    Raises DarkroomError if the folder does not contain them, or the device does not exist.
    """
    import transformers
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    place = resolve_device(device).torch
    try:
        processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model = _load_model(folder, getattr(transformers, model_class))
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise DarkroomError(
            f"The model in {folder} cannot be loaded: {plain_reason(error)}.",
            advice="Delete the folder, so that the model is downloaded again.",
        ) from error
    return model.to(place).eval(), processor, place


def _load_model(folder: Path, model_class: Any) -> Any:
    """Return a model in float32; a folder whose weights are a pickle is read as every pickled checkpoint is."""
    pickled = folder / _PICKLED
    if any(folder.glob("model*.safetensors")) or not pickled.is_file():
        return model_class.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    weights = {name: tensor.make() for name, tensor in read_stored(pickled)[0].items()}
    config = model_class.config_class.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return model_class.from_pretrained(
        None, config=config, state_dict=weights, trust_remote_code=False, dtype=torch.float32
    )


_BLIP_MAX_NEW_TOKENS = 75


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
            tokens = self.model.generate(**inputs, max_new_tokens=_BLIP_MAX_NEW_TOKENS, do_sample=False, num_beams=1)
        return " ".join(self.processor.decode(tokens[0], skip_special_tokens=True).split())


def make_blip(folder: Path, settings: CaptionSettings, device: str) -> Captioner:
    """Return the captioner in a folder. Raises DarkroomError if it cannot be loaded."""
    model, processor, place = load_pretrained(folder, "BlipForConditionalGeneration", device)
    return Blip(model, processor, place, settings.initial)


TASKS: Mapping[Detail, str] = {
    "short": "<CAPTION>",
    "detailed": "<DETAILED_CAPTION>",
    "long": "<MORE_DETAILED_CAPTION>",
}
_FLORENCE_MAX_NEW_TOKENS: Mapping[Detail, int] = {"short": 64, "detailed": 256, "long": 512}


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
                **inputs, max_new_tokens=_FLORENCE_MAX_NEW_TOKENS[self.detail], do_sample=False, num_beams=3
            )
        return " ".join(self.processor.batch_decode(tokens, skip_special_tokens=True)[0].split())


def make_florence(folder: Path, settings: CaptionSettings, device: str) -> Captioner:
    """Return the captioner in a folder. Raises DarkroomError if it cannot be loaded."""
    model, processor, place = load_pretrained(folder, "Florence2ForConditionalGeneration", device)
    return Florence(model, processor, place, settings.detail)


# CLIPSeg through transformers: a probability map for each text.


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
        mask = logits.float().reshape(len(self.prompts), *logits.shape[-2:]).sigmoid().amax(0)
        return resize_mask(np.asarray(mask.cpu().numpy(), np.float32), image.size)


def make_clipseg(folder: Path | None, settings: MaskSettings, device: str) -> Masker:
    """Return the masker in a folder. Raises DarkroomError without a text, or if it cannot be loaded."""
    assert folder is not None
    prompts = split_list(settings.prompts)
    if not prompts:
        raise DarkroomError("CLIPSeg needs a text that describes what to mask.", advice="Enter one, such as: a face.")
    model, processor, place = load_pretrained(folder, "CLIPSegForImageSegmentation", device)
    return ClipSeg(model, processor, place, prompts)
