"""Loads Stable Diffusion 3 and 3.5 from a diffusers folder, a Hugging Face repository or a single file."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.protocol import LoadRequest
from modules.families.sd3.files import published_name
from modules.families.sd3.forward import StableDiffusion3
from modules.families.sd3.settings import Sd3Settings
from modules.families.sd3.spec import CONVENTION, SD3
from modules.families.sd3.text import CLIPS, ENCODERS
from modules.system.errors import DarkroomError


def load(request: LoadRequest[Sd3Settings]) -> StableDiffusion3:
    """Load the model with every part on the CPU and frozen.

    Both CLIPs give the states before their last layer, without the final norm. Raises DarkroomError where a file is
    missing or the model is not Stable Diffusion 3.
    """
    files = read_model(request, SD3)
    spec = SD3.without(set(ENCODERS) - files.parts.keys())
    if not spec.names_of("text_encoder"):
        raise DarkroomError(
            f"{request.base_model} has no text encoder that is used.",
            advice="Switch on one of the text encoders, and choose a file for it if the base model has none.",
        )
    require_known_denoiser(files, spec)
    settings, config = request.settings, files.parts["transformer"].config
    clips = {
        name: files.tower(name, skipped_layers=1 + settings.skipped_layers(name), is_normed=False)
        for name in CLIPS
        if name in files.parts
    }
    t5 = None
    if (name := ENCODERS[2]) in files.parts:
        tokenizer = load_t5_tokenizer(files.tokenizers.get(name))
        t5 = T5Tower(
            files.parts[name], tokenizer, max_tokens=settings.text_tokens, masks_padding=False, kept_padding=None
        )
    return StableDiffusion3(
        spec=spec,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of(published_name(config), files.parts, prediction="flow"),
        clips=clips,
        t5=t5,
        t5_tokens=settings.text_tokens,
    )
