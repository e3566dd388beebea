"""Loads Qwen-Image from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.qwen_image.forward import QwenImage
from modules.families.qwen_image.settings import QwenImageSettings
from modules.families.qwen_image.spec import CONVENTION, QWEN_IMAGE
from modules.families.qwen_image.text import prompt_reader
from modules.system.errors import DarkroomError

_OF_OTHERS = {
    "zero_cond_t": "Qwen-Image-Edit-2511",
    "use_additional_t_cond": "Qwen-Image-Layered",
    "use_layer3d_rope": "Qwen-Image-Layered",
}
"""The keys in a transformer's config that only other models of the series set."""


def load(request: LoadRequest[QwenImageSettings]) -> QwenImage:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Qwen-Image.
    """
    files = read_model(request, QWEN_IMAGE)
    require_known_denoiser(files, QWEN_IMAGE)
    config = files.parts["transformer"].config
    if others := [label for key, label in _OF_OTHERS.items() if config.get(key)]:
        raise DarkroomError(f"{files.name} is {others[0]}, which is not supported.", advice="Choose Qwen-Image.")
    return QwenImage(
        spec=QWEN_IMAGE,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("qwen_image", files.parts, prediction="flow"),
        reader=prompt_reader(files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder"))),
    )
