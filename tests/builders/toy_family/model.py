"""Loads the toy family from a diffusers folder."""

from __future__ import annotations

from modules.families.parts.lora_names import naming_of
from modules.families.parts.noise_process import process_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.settings import FamilySettings
from tests.builders.toy_family.forward import ToyPixel
from tests.builders.toy_family.spec import TOY


def load(request: LoadRequest[FamilySettings]) -> ToyPixel:
    """Return the model with every part on the CPU, frozen."""
    files = read_model(request, TOY)
    process = process_of(files.scheduler, name=files.name)
    skipped_layers = request.settings.skipped_layers("text_encoder")
    return ToyPixel(
        spec=TOY,
        unet=files.parts["unet"],
        tower=files.tower("text_encoder", skipped_layers=skipped_layers, is_normed=True),
        process=process,
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("toy_pixel", files.parts, prediction=process.prediction_type),
    )
