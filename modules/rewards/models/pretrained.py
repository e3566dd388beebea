"""Reads models in transformers' layout: weights alone, and all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.utils.logging import disable_progress_bar

from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason


def read_pretrained(model_class: Any, folder: Path, label: str) -> Any:
    """Return the model of a folder in transformers' layout, in float32. Only weights are read, never code.

    Raises DarkroomError where the folder does not hold a `label`, or lacks weights.
    """
    disable_progress_bar()
    try:
        model, loading = model_class.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            dtype=torch.float32,
            trust_remote_code=False,
        )
    except (OSError, ValueError, RuntimeError, TypeError, SafetensorError) as error:
        raise DarkroomError(
            f"The {label} in {folder} cannot be read: {plain_reason(error)}.",
            advice="The folder must hold config.json and model.safetensors in transformers' layout.",
        ) from error
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:  # the library would initialise them at random and continue
        raise DarkroomError(
            f"{len(missing)} weights are missing from the {label} in {folder}; the first is {missing[0]}.",
            advice="The download is damaged or belongs to another model; download it again.",
        )
    return model
