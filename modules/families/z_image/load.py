"""Loads Z-Image from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.z_image.forward import ZImage
from modules.families.z_image.settings import ZImageSettings
from modules.families.z_image.spec import CONVENTION, Z_IMAGE
from modules.families.z_image.text import prompt_reader
from modules.system.errors import DarkroomError


def load(request: LoadRequest[ZImageSettings]) -> ZImage:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Z-Image.
    """
    files = read_model(request, Z_IMAGE)
    require_known_denoiser(files, Z_IMAGE)
    if files.parts["transformer"].config.siglip_feat_dim is not None:
        raise DarkroomError(
            f"{files.name} also reads images (Z-Image Omni), which is not supported.", advice="Choose Z-Image."
        )
    return ZImage(
        spec=Z_IMAGE,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("z_image", files.parts, prediction="flow"),
        reader=prompt_reader(files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder"))),
    )
