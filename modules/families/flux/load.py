"""Loads FLUX.1 from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.flux.files import published_name
from modules.families.flux.forward import Flux
from modules.families.flux.settings import MAX_TOKENS, FluxSettings
from modules.families.flux.spec import CONVENTION, FLUX
from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.protocol import LoadRequest


def load(request: LoadRequest[FluxSettings]) -> Flux:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not FLUX.1.
    """
    files = read_model(request, FLUX)
    require_known_denoiser(files, FLUX)
    config = files.parts["transformer"].config
    t5 = T5Tower(
        files.parts["text_encoder_2"],
        load_t5_tokenizer(files.tokenizers.get("text_encoder_2")),
        max_tokens=request.settings.tokens_read(MAX_TOKENS - 1, config) + 1,
        masks_padding=False,
        kept_padding=None,
    )
    return Flux(
        spec=FLUX,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of(published_name(config), files.parts, prediction="flow"),
        clip_tokenizer=load_clip_tokenizer(files.tokenizers.get("text_encoder")),
        t5=t5,
        guidance=request.settings.guidance,
    )
