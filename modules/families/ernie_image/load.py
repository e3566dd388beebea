"""Loads ERNIE-Image from a diffusers folder, a Hugging Face repository, or a file of the transformer."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.ernie_image.forward import ErnieImage
from modules.families.ernie_image.settings import ErnieImageSettings
from modules.families.ernie_image.spec import CONVENTION, ERNIE_IMAGE
from modules.families.ernie_image.text import prompt_reader
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest

NORM_EPSILON = 1e-5
"""The epsilon of the latents' batch norm, as in training. The published config has FLUX.2's 1e-4, which
`ErnieImagePipeline` does not read."""


def load(request: LoadRequest[ErnieImageSettings]) -> ErnieImage:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not ERNIE-Image.
    """
    files = read_model(request, ERNIE_IMAGE)
    require_known_denoiser(files, ERNIE_IMAGE)
    files.parts["vae"].register_to_config(batch_norm_eps=NORM_EPSILON)
    return ErnieImage(
        spec=ERNIE_IMAGE,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("ernie_image", files.parts, prediction="flow"),
        reader=prompt_reader(files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder"))),
    )
