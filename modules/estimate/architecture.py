"""What a model is made of, without loading it: the configs of its parts, from its files or as published. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.families.registry import FAMILIES
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.file_kind import FileKind
from modules.formats.headers import UnreadableFileError
from modules.formats.kinds import identify_header
from modules.formats.single_file.models import configs_of_file, shipped_configs
from modules.formats.single_file.names import original_names
from modules.system.paths import from_root

# The published model of each family, and the names under which repositories of SD 2.x go.
_PUBLISHED = {"sd": "sd1", "sdxl": "sdxl"}
_SECOND = ("stable-diffusion-2", "sd-2", "sd2")


@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """The configs of a model's parts by name. `is_published`: those of the published model, for want of files."""

    configs: Mapping[str, Mapping[str, Any]]
    is_published: bool = False


def architecture_of(base_model: str, family: str) -> Architecture | None:
    """Return the architecture of a base model: a file, a folder, or a repository that may not be here yet.

    A repository counts as the published model of its family. None where files are there that do not tell.
    """
    path = from_root(base_model)
    try:
        if base_model and path.is_dir():
            return _of_folder(path, family)
        if base_model and path.is_file():
            return _of_file(path)
    except (OSError, ValueError, RecursionError, UnreadableFileError):
        return None
    is_second = family == "sd" and any(name in base_model.lower() for name in _SECOND)
    return Architecture(shipped_configs("sd2" if is_second else _PUBLISHED[family]), is_published=True)


def _of_folder(folder: Path, family: str) -> Architecture:
    parts = [part.name for part in FAMILIES[family].parts]
    return Architecture({p: json.loads((folder / p / "config.json").read_text(encoding="utf-8")) for p in parts})


def _of_file(path: Path) -> Architecture | None:
    header = read_checkpoint_header(path)
    kind: FileKind = identify_header(header)
    if not kind.is_model:
        return None
    shapes = {original: header.shapes[name] for original, name in original_names(header.shapes).items()}
    return Architecture(configs_of_file(kind.model, shapes, header.metadata))
