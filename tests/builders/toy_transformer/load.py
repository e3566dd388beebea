"""Loads the toy transformer from a diffusers folder."""

from __future__ import annotations

from modules.diffusion.flow import flow_process_of
from modules.families.parts.files import require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from tests.builders.toy_transformer.forward import ToyTransformer
from tests.builders.toy_transformer.settings import ToyTransformerSettings
from tests.builders.toy_transformer.spec import CONVENTION, TOY_TRANSFORMER
from tests.builders.toy_transformer.text import load_tokenizer


def load(request: LoadRequest[ToyTransformerSettings]) -> ToyTransformer:
    """Return the model with every part on the CPU, frozen."""
    files = read_model(request, TOY_TRANSFORMER)
    require_known_denoiser(files, TOY_TRANSFORMER)
    return ToyTransformer(
        spec=TOY_TRANSFORMER,
        modules=files.parts,
        process=flow_process_of(files.scheduler, CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("toy_transformer", files.parts, prediction="flow"),
        tokenizer=load_tokenizer(files.tokenizers.get("text_encoder")),
        text_tokens=request.settings.text_tokens,
    )
