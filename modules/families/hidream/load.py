"""Loads HiDream I1 from a diffusers folder, a Hugging Face repository, or a file of the transformer."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.hidream.forward import HiDream
from modules.families.hidream.settings import HiDreamSettings
from modules.families.hidream.spec import CONVENTION, HIDREAM
from modules.families.hidream.text import CLIPS, LLAMA, T5, llama_reader
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.t5_tokens import load_t5_tokenizer
from modules.families.protocol import LoadRequest


def load(request: LoadRequest[HiDreamSettings]) -> HiDream:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not HiDream I1.
    """
    files = read_model(request, HIDREAM)
    require_known_denoiser(files, HIDREAM)
    most = request.settings.text_tokens
    t5_tokenizer = load_t5_tokenizer(files.tokenizers.get(T5))
    config = files.parts["transformer"].config
    llama = llama_reader(
        files.parts[LLAMA],
        load_chat_tokenizer(files.tokenizers.get(LLAMA)),
        most,
        num_read=max(config.llama_layers) + 1,
        width=config.caption_channels[1],
    )
    return HiDream(
        spec=HIDREAM,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("hidream_i1", files.parts, prediction="flow"),
        clips={name: files.tower(name, skipped_layers=0, is_normed=True) for name in CLIPS},
        t5=T5Tower(files.parts[T5], t5_tokenizer, max_tokens=most, masks_padding=True, kept_padding=None),
        llama=llama,
    )
