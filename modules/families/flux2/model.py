"""Loads FLUX.2 dev from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.families.flux2.files import MODEL
from modules.families.flux2.spec import FLUX2, Flux2DevSettings
from modules.families.parts.chat_text import ChatReader, ChatTemplate, Padding
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.flux2.forward import Flux2, Flux2Conditioning
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import flow_facts
from modules.families.protocol import LoadRequest
from modules.system.regular_files import read_json_object

_SYSTEM_MESSAGE = (
    "You are an AI that reasons about image descriptions. You give structured responses focusing on object "
    "relationships, object\nattribution and actions without speculation."
)
_TEMPLATE = ChatTemplate(f"<s>[SYSTEM_PROMPT]{_SYSTEM_MESSAGE}[/SYSTEM_PROMPT][INST]", "[/INST]")
_LAYERS = (10, 20, 30)
_PAD, _IMAGE = "<pad>", "[IMG]"
_MAX_CONFIG_BYTES = 10_000_000  # with a line for each of a thousand special tokens


@dataclass(eq=False)
class Flux2Dev(Flux2):
    """FLUX.2 with a Mistral-Small 3."""

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> Flux2Conditioning:
        """Return the states of prompts, without the token in whose place the model would read an image."""
        return super().encode_prompts([prompt.replace(_IMAGE, "") for prompt in prompts], padded_like)


def load(request: LoadRequest[Flux2DevSettings]) -> Flux2Dev:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not FLUX.2 dev.
    """
    files, by_inputs = read_model(request, FLUX2), FLUX2.by_inputs_alone(request.variant)
    folder = files.tokenizers.get("text_encoder")
    tokenizer = load_chat_tokenizer(folder)
    return Flux2Dev(
        **flow_facts(files, FLUX2, MODEL.name, by_inputs=by_inputs),
        reader=ChatReader(
            files.parts["text_encoder"],
            tokenizer,
            _TEMPLATE,
            request.settings.padded_tokens,
            _LAYERS,
            padding=Padding(tokenizer.id_of(_PAD), is_left=_pads_left(folder)),
        ),
        guidance=request.settings.guidance,
    )


def _pads_left(folder: Path | None) -> bool:
    """Return whether a tokenizer's config puts the padding before the prompt, as Mistral's does by default."""
    if folder is None:
        return True
    config = read_json_object(folder / "tokenizer_config.json", _MAX_CONFIG_BYTES)
    return config is None or config.get("padding_side", "left") != "right"
