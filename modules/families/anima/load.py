"""Loads Anima from a diffusers folder, a Hugging Face repository, or files of its parts."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.anima.forward import Anima
from modules.families.anima.settings import CONDITIONER, AnimaSettings
from modules.families.anima.spec import ANIMA, CONVENTION
from modules.families.anima.text import PromptTokenizers
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.protocol import LoadRequest


def load(request: LoadRequest[AnimaSettings]) -> Anima:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Anima.
    """
    files = read_model(request, ANIMA)
    require_known_denoiser(files, ANIMA)
    qwen = load_chat_tokenizer(files.tokenizers.get("text_encoder"))
    t5 = load_t5_tokenizer(files.tokenizers.get(CONDITIONER))
    for layer in files.parts[CONDITIONER].blocks:  # its masks need PyTorch's own choice of a kernel
        for attention in (layer.cross_attn, getattr(layer, "self_attn", None)):
            if attention is not None:
                attention.processor._attention_backend = "native"
    return Anima(
        spec=ANIMA,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("anima", files.parts, prediction="flow"),
        tokenizers=PromptTokenizers(qwen, t5),
    )
