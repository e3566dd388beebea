"""The configs of a model's parts, from its files or of the published model, without loading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify, identify_header
from modules.families.parts.single_file.models import configs_of_model, original_names, shipped_configs
from modules.families.registry import FAMILIES, files_of
from modules.families.separate_parts import config_next_to, file_of_part
from modules.families.spec import FamilySpec
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.headers import UnreadableFileError
from modules.system.paths import from_root
from modules.system.regular_files import read_regular

_MAX_CONFIG_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """The configs of a model's parts by name. `is_published`: the model has no files here, so the published configs."""

    configs: Mapping[str, Mapping[str, Any]]
    is_published: bool = False


def architecture_of(base_model: str, family: str, variant: str = "") -> Architecture | None:
    """Return the architecture of a base model: a file, a folder, or a repository that may not be downloaded yet.

    In some variants parts are of other classes, which have configs of their own.

    A repository counts as the published model of its family. None where the files do not contain the configs, or the
    family ships none.
    """
    path = from_root(base_model)
    try:
        if base_model and path.is_dir():
            return _of_folder(path, FAMILIES[family].of_variant(variant))
        if base_model and path.is_file():
            return _of_file(path, FAMILIES[family].of_variant(variant))
    except (OSError, ValueError, RecursionError, UnreadableFileError):
        return None
    configs = own_configs(FAMILIES[family].of_variant(variant), files_of(family).configs_named(base_model))
    return Architecture(configs, is_published=True) if configs else None


def own_configs(spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return the configs of a model's parts, from published ones, as the classes of the parts have them."""
    return {**configs, **{p.name: p.model.own_config(configs[p.name]) for p in spec.parts if p.name in configs}}


def _of_folder(folder: Path, spec: FamilySpec) -> Architecture:
    kind = identify(folder)
    configs: dict[str, Mapping[str, Any]] = {}
    for part in spec.parts:
        if part.published_in and (part.name in kind.without or not part.is_in_base_model):
            own = config_next_to(file_of_part(part, "", str(folder)))
            configs[part.name] = own or shipped_configs(kind.model)[part.name]
        elif part.name not in kind.without:
            config = json.loads(read_regular(folder / part.name / "config.json", _MAX_CONFIG_BYTES))
            configs[part.name] = part.model.own_config(config)
    return Architecture(configs)


def _of_file(path: Path, spec: FamilySpec) -> Architecture | None:
    header = read_checkpoint_header(path)
    kind: FileKind = identify_header(header)
    if not (kind.is_model or kind.is_denoiser):
        return None
    shapes = {original: header.shapes[name] for original, name in original_names(kind.model, header.shapes).items()}
    return Architecture(own_configs(spec, configs_of_model(kind.model, shapes, header.metadata)))
