"""Loading a transformers model and its processor from a folder; only weights are read, never code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from modules.formats.stored_tensors import read_stored
from modules.system.devices import resolve_device
from modules.system.errors import DarkroomError

_PICKLED = "pytorch_model.bin"


def load_pretrained(folder: Path, model_class: str, device: str) -> tuple[Any, Any, torch.device]:
    """Return a model of a class of transformers, its processor, and the device that the model is on.

    Raises DarkroomError where the folder does not contain them, or the device does not exist.
    """
    import transformers
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    place = resolve_device(device).torch
    try:
        processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model = _load_model(folder, getattr(transformers, model_class))
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise DarkroomError(
            f"The model in {folder} cannot be loaded: {str(error).splitlines()[0] if str(error) else error!r}",
            advice="Delete the folder, so that the model is downloaded again.",
        ) from error
    return model.to(place).eval(), processor, place


def _load_model(folder: Path, model_class: Any) -> Any:
    """Return a model in float32; a folder whose weights are a pickle is read as every pickled checkpoint is."""
    pickled = folder / _PICKLED
    if any(folder.glob("model*.safetensors")) or not pickled.is_file():
        return model_class.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    weights = {name: tensor.make() for name, tensor in read_stored(pickled)[0].items()}
    config = model_class.config_class.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return model_class.from_pretrained(
        None, config=config, state_dict=weights, trust_remote_code=False, dtype=torch.float32
    )
