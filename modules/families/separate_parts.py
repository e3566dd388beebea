"""Parts that are published apart from their models: where their weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.families.spec import PartSpec
from modules.system.paths import as_config_path, from_root
from modules.system.regular_files import read_json_object

_MAX_CONFIG_BYTES = 1_000_000
_MODELS = "models"
_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")  # transformers' names


def file_of_part(part: PartSpec, given: str, base_model: str) -> str:
    """Return the file that a part is read from in place of the base model's own weights; empty without one.

    `given` is the file in its settings; for a part that is published apart from its model it may be a folder. If it is
    empty or one of the part's repositories, a folder with the repository's name is looked for in the models folder and
    next to a base model that lacks the part.
    """
    given = given.strip()
    if not (part.published_in and part.reads_file) or (given and from_root(given).is_file()):
        return given
    if given and (weights := weights_in(from_root(given))):
        return weights
    base = from_root(base_model)
    if not given and (not base_model.strip() or (base / part.name / "config.json").is_file()):
        return ""
    names = [repository.rpartition("/")[2] for repository in (given, *part.published_in) if repository]
    folders = (place / name for name in names for place in (base.parent, from_root(_MODELS)))
    return next((weights for folder in folders if (weights := weights_in(folder))), given)


def weights_in(folder: Path) -> str:
    """Return the file with the weights of a part's folder, or with their index; empty without one."""
    files = (folder / name for name in _WEIGHTS)
    return next((as_config_path(file) for file in files if file.is_file()), "")


def config_next_to(file: str) -> dict[str, Any] | None:
    """Return the config in the folder of a part's file; None if there is no valid one."""
    if not file:
        return None
    return read_json_object(from_root(file).parent / "config.json", _MAX_CONFIG_BYTES)


def lack_of(part: PartSpec, base_model: str) -> str:
    """Return the sentence that a base model lacks a part which is published apart from it."""
    return f"{base_model} has no {part.label}, which is published apart from the model."


def advice_for(part: PartSpec) -> str:
    """Return how a user gets a part that is published apart from its model."""
    repository = part.published_in[0]
    name = repository.rpartition("/")[2]
    return (
        f"Accept the licence of {repository} at Hugging Face and download it. Put its folder, {name}, next to the base "
        f"model's folder or into the folder {_MODELS}, or choose it as the file of {part.label}."
    )
