"""The tokenizer of a config's base model, for checks of captions and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.estimate.architecture import architecture_of
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.file_errors import plain_reason
from modules.system.paths import from_root
from trainer.preflight.model_files import downloaded_folder, kind_of


def read_tokenizer(config: Config) -> Any:
    """Return the tokenizer that counts the tokens of captions. Raises DarkroomError if it cannot be read."""
    folder = tokenizer_folder(config)
    try:
        return load_factory(config.family.text.tokenizer)(folder)
    except Exception as error:  # the library raises a plain Exception for a damaged vocabulary
        message = f"The tokenizer of the base model in {folder} cannot be read: {plain_reason(error)}."
        raise DarkroomError(message, advice="Download or copy the model again.") from error


def counting_tokenizer(config: Config) -> Any | None:
    """Return `read_tokenizer`'s tokenizer; None if it comes with a base model that is not on this machine yet."""
    if not config.family.text.ships_vocabulary and tokenizer_folder(config) is None:
        return None
    return read_tokenizer(config)


def tokens_read(config: Config) -> int:
    """Return how many tokens of a caption the base model reads at once (`TextSpec.chunk_tokens`)."""
    model, spec = config.model, config.family
    found = architecture_of(model.base_model.strip(), spec.name) if model.base_model.strip() else None
    denoiser = {} if found is None else found.configs.get(spec.denoiser.name, {})
    return model.family.tokens_read(spec.text.chunk_tokens, denoiser)


def tokenizer_folder(config: Config) -> Path | None:
    """Return the tokenizer folder of a local or downloaded base model; None if this machine has none."""
    tokenizers = config.family.tokenizers
    if not tokenizers or not config.model.base_model.strip():
        return None
    counting = tokenizers.get(config.family.text.counted_by) or next(iter(tokenizers.values()))
    for model in (from_root(config.model.base_model), downloaded_folder(config)):
        folder = None if model is None else model / counting
        if folder is not None and kind_of(folder) == "folder":
            return folder
    return None
