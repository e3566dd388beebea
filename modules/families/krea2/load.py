"""Loads Krea 2 from a diffusers folder, a Hugging Face repository, or a file of the transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.diffusion.flow import flow_process_of
from modules.families.krea2.forward import Krea2
from modules.families.krea2.settings import Krea2Settings
from modules.families.krea2.spec import CONVENTION, KREA2, TURBO_MU
from modules.families.krea2.text import prompt_reader, read_layers
from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.families.parts.files import ModelFiles, require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.formats.diffusers_folder import read_json


def load(request: LoadRequest[Krea2Settings]) -> Krea2:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Krea 2.
    """
    files = read_model(request, KREA2)
    require_known_denoiser(files, KREA2)
    index = read_json(files.folder, "model_index.json") if files.folder is not None else {}
    scheduler = _scheduler_of(files, index, request.part_files.get("transformer") or request.base_model)
    encoder, transformer = (files.parts[name].config for name in ("text_encoder", "transformer"))
    given = index.get("text_encoder_select_layers")
    layers = read_layers(encoder.num_hidden_layers, transformer.num_text_layers, given)
    tokenizer = load_chat_tokenizer(files.tokenizers.get("text_encoder"))
    return Krea2(
        spec=KREA2,
        modules=files.parts,
        process=flow_process_of(scheduler, CONVENTION),
        scheduler=scheduler,
        folder=files.folder,
        lora_naming=naming_of("krea2", files.parts, prediction="flow"),
        reader=prompt_reader(files.parts["text_encoder"], tokenizer, layers),
    )


def _scheduler_of(files: ModelFiles, index: Mapping[str, Any], denoiser: str) -> Mapping[str, Any]:
    """Return the scheduler's config, for Turbo with its one shift for all sizes, which is not in its config.

    `denoiser` is the name of the model or the file with the transformer: the index is that of the base model's.
    """
    distilled = KREA2.distilled
    assert distilled is not None
    is_turbo = distilled.is_named(denoiser)
    if not is_turbo and denoiser == files.name:
        is_turbo = bool(index.get(distilled.index_key)) and not distilled.is_undone(denoiser)
    if not is_turbo:
        return files.scheduler
    return {**files.scheduler, "use_dynamic_shifting": True, "base_shift": TURBO_MU, "max_shift": TURBO_MU}
