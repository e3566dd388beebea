"""Loads Qwen-Image 2.1 from a diffusers folder, a Hugging Face repository, or a file of the transformer."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.qwen_image21.forward import QwenImage21
from modules.families.qwen_image21.settings import QwenImage21Settings
from modules.families.qwen_image21.spec import CONVENTION, QWEN_IMAGE21
from modules.families.qwen_image21.text import prompt_reader


def load(request: LoadRequest[QwenImage21Settings]) -> QwenImage21:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Qwen-Image 2.1.
    """
    files = read_model(request, QWEN_IMAGE21)
    require_known_denoiser(files, QWEN_IMAGE21)
    return QwenImage21(
        spec=QWEN_IMAGE21,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("qwen_image21", files.parts, prediction="flow"),
        reader=prompt_reader(files.parts["text_encoder"], load_chat_tokenizer(files.tokenizers.get("text_encoder"))),
    )
