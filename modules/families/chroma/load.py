"""Loads Chroma1 from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.chroma.forward import Chroma
from modules.families.chroma.settings import ChromaSettings
from modules.families.chroma.spec import CHROMA, CONVENTION, MAX_TOKENS
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.protocol import LoadRequest


def load(request: LoadRequest[ChromaSettings]) -> Chroma:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Chroma1.
    """
    files = read_model(request, CHROMA)
    require_known_denoiser(files, CHROMA)
    t5 = T5Tower(
        files.parts["text_encoder"],
        load_t5_tokenizer(files.tokenizers.get("text_encoder")),
        max_tokens=MAX_TOKENS,
        masks_padding=True,
        kept_padding=1,
    )
    return Chroma(
        spec=CHROMA,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("chroma1", files.parts, prediction="flow"),
        t5=t5,
    )
