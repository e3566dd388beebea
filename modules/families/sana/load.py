"""Loads Sana from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.diffusion.flow import flow_process_of
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.sana.forward import Sana
from modules.families.sana.settings import SanaSettings
from modules.families.sana.spec import CONVENTION, SANA
from modules.families.sana.text import instructed, load_tokenizer, plain_reader
from modules.system.errors import DarkroomError


def load(request: LoadRequest[SanaSettings]) -> Sana:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Sana.
    """
    files = read_model(request, SANA)
    require_known_denoiser(files, SANA)
    if files.parts["transformer"].config.guidance_embeds:
        raise DarkroomError(
            f"{files.name} is Sana Sprint, which was distilled for a few steps and is not supported.",
            advice="Choose Sana or Sana 1.5.",
        )
    plain = plain_reader(files.parts["text_encoder"], load_tokenizer(files.tokenizers.get("text_encoder")))
    return Sana(
        spec=SANA,
        modules=files.parts,
        process=flow_process_of(_with_shift(files.scheduler), CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("sana", files.parts, prediction="flow"),
        reader=instructed(plain),
        plain=plain,
    )


def _with_shift(scheduler: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a scheduler's config with its shift under the name that Euler's has: the published one is DPM++'s."""
    return {"shift": scheduler["flow_shift"], **scheduler} if "flow_shift" in scheduler else scheduler
