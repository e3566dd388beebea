"""Loads Stable Diffusion XL from a diffusers folder, a Hugging Face repository or a single file."""

from __future__ import annotations

from modules.families.parts.files import ModelFiles
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.sdxl.forward import StableDiffusionXL
from modules.families.sdxl.settings import SdxlSettings
from modules.families.sdxl.spec import SDXL


def load(request: LoadRequest[SdxlSettings]) -> StableDiffusionXL:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not SDXL.
    """
    return assemble(read_model(request, SDXL), request.settings)


def assemble(files: ModelFiles, settings: SdxlSettings) -> StableDiffusionXL:
    """Build the model from its files, which were read from any form.

    SDXL always skips the last layer of both encoders; clip skip counts the layers skipped beyond it. The pooled state
    always comes from the last layer, regardless of clip skip. Raises DarkroomError for a variant that is not supported.
    """
    towers = {
        name: files.tower(
            name,
            skipped_layers=1 + settings.skipped_layers(name),
            is_normed=False,
            is_weighted=settings.prompt_weighting,
        )
        for name in SDXL.names_of("text_encoder")
    }
    return StableDiffusionXL.of(
        SDXL, files, settings, towers, lambda prediction: naming_of("sdxl", files.parts, prediction=prediction)
    )
