"""Loads FLUX.2 klein from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from modules.families.flux2_klein.files import published_name
from modules.families.flux2_klein.spec import FLUX2_KLEIN, Flux2KleinSettings
from modules.families.parts.chat_text import ChatReader, ChatTemplate, Padding
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.flux2.forward import Flux2
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import flow_facts
from modules.families.protocol import LoadRequest

# Qwen3's for a single message of the user, with the beginning of an answer whose thought is empty.
_TEMPLATE = ChatTemplate("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
_LAYERS = (9, 18, 27)
_PAD = "<|endoftext|>"


def load(request: LoadRequest[Flux2KleinSettings]) -> Flux2:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not FLUX.2 klein.
    """
    files, by_inputs = read_model(request, FLUX2_KLEIN), FLUX2_KLEIN.by_inputs_alone(request.variant)
    tokenizer = load_chat_tokenizer(files.tokenizers.get("text_encoder"))
    return Flux2(
        **flow_facts(files, FLUX2_KLEIN, published_name(files.parts["transformer"].config), by_inputs=by_inputs),
        reader=ChatReader(
            files.parts["text_encoder"],
            tokenizer,
            _TEMPLATE,
            request.settings.padded_tokens,
            _LAYERS,
            padding=Padding(tokenizer.id_of(_PAD)),
        ),
    )
