"""The tokenizer of a config's base model, for checks of captions and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.families.registry import load_tokenizer
from modules.families.spec import tokenizer_of
from modules.system.errors import DarkroomError
from modules.system.paths import from_root


def read_tokenizer(config: Config) -> Any:
    """Return the tokenizer that counts the tokens of captions. Raises DarkroomError if it cannot be read."""
    folder = tokenizer_folder(config)
    try:
        return load_tokenizer(config.model.family.name)(folder)
    except Exception as error:  # the library raises a plain Exception for a damaged vocabulary
        reason = str(error) or type(error).__name__
        message = f"The tokenizer of the base model in {folder} cannot be read: {reason}."
        raise DarkroomError(message, advice="Download or copy the model again.") from error


def tokenizer_folder(config: Config) -> Path | None:
    """Return the tokenizer folder of a local base model; None to use the vocabulary shipped with the program."""
    encoders = config.family.names_of("text_encoder")
    if not encoders or not config.model.base_model.strip():
        return None
    folder = from_root(config.model.base_model) / tokenizer_of(encoders[0])
    try:
        return folder if folder.is_dir() else None
    except (OSError, ValueError):
        return None
