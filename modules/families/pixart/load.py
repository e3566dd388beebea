"""Loads PixArt alpha and sigma from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.noise_process import process_of
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_lower_case_t5_tokenizer
from modules.families.pixart.files import published_name
from modules.families.pixart.forward import PixArt
from modules.families.pixart.settings import MAX_TOKENS, PixArtSettings
from modules.families.pixart.spec import PIXART
from modules.families.protocol import LoadRequest


def load(request: LoadRequest[PixArtSettings]) -> PixArt:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not PixArt.
    """
    files = read_model(request, PIXART)
    require_known_denoiser(files, PIXART)
    config = files.parts["transformer"].config
    t5 = T5Tower(
        files.parts["text_encoder"],
        load_lower_case_t5_tokenizer(files.tokenizers.get("text_encoder")),
        max_tokens=request.settings.tokens_read(MAX_TOKENS - 1, config) + 1,
        masks_padding=True,
        kept_padding=0,
    )
    process = process_of(files.scheduler, name=files.name)
    return PixArt(
        spec=PIXART,
        modules=files.parts,
        process=process,
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of(published_name(config), files.parts, prediction=process.prediction_type),
        t5=t5,
    )
