"""Loads Lumina-Image 2.0 from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.lumina2.forward import Lumina2
from modules.families.lumina2.positions import give_positions
from modules.families.lumina2.settings import Lumina2Settings
from modules.families.lumina2.spec import CONVENTION, LUMINA2
from modules.families.lumina2.text import plain_reader, prompt_reader
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.gemma import load_tokenizer
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest


def load(request: LoadRequest[Lumina2Settings]) -> Lumina2:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Lumina-Image 2.0.
    """
    files = read_model(request, LUMINA2)
    require_known_denoiser(files, LUMINA2)
    positions = give_positions(files.parts["transformer"])
    encoder, tokenizer = files.parts["text_encoder"], load_tokenizer(files.tokenizers.get("text_encoder"))
    return Lumina2(
        spec=LUMINA2,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("lumina2", files.parts, prediction="flow"),
        reader=prompt_reader(encoder, tokenizer),
        plain=plain_reader(encoder, tokenizer),
        positions=positions,
    )
