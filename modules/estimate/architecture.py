"""The configs of a model's parts, from its files or of the published model, without loading it."""

from __future__ import annotations

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
from modules.system.regular_files import json_object_in, read_regular

_MAX_CONFIG_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """The configs of a model's parts by name; if `is_published`, of the published model, as it has no files here."""

    configs: Mapping[str, Mapping[str, Any]]
    is_published: bool = False


def architecture_of(base_model: str, family: str, variant: str = "") -> Architecture | None:
    """Return the architecture of a base model: a file, a folder, or a repository that may not be downloaded yet.

    The parts have the classes and configs of the `variant`. A repository counts as the published model of its family.
    None if the files do not contain the configs, or no published configs ship for the family.
    """
    path = from_root(base_model)
    try:
        if base_model and path.is_dir():
            return _read_folder(path, FAMILIES[family].of_variant(variant))
        if base_model and path.is_file():
            return _read_file(path, FAMILIES[family].of_variant(variant))
    except (OSError, ValueError, RecursionError, UnreadableFileError):
        return None
    configs = part_configs(FAMILIES[family].of_variant(variant), files_of(family).configs_named(base_model))
    return Architecture(configs, is_published=True) if configs else None


def part_configs(spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return published configs with each part's reduced to its own class (`ModelClass.own_config`)."""
    return {**configs, **{p.name: p.model.own_config(configs[p.name]) for p in spec.parts if p.name in configs}}


def _read_folder(folder: Path, spec: FamilySpec) -> Architecture:
    kind = identify(folder)
    configs: dict[str, Mapping[str, Any]] = {}
    for part in spec.parts:
        if part.published_in and (part.name in kind.without or not part.is_in_base_model):
            config = config_next_to(file_of_part(part, "", str(folder)))
            configs[part.name] = config or shipped_configs(kind.model)[part.name]
        elif part.name not in kind.without:
            config = json_object_in(read_regular(folder / part.name / "config.json", _MAX_CONFIG_BYTES))
            if config is None:
                raise ValueError(f"the config of {part.name} contains no settings")
            configs[part.name] = part.model.own_config(config)
    return Architecture(configs)


def _read_file(path: Path, spec: FamilySpec) -> Architecture | None:
    header = read_checkpoint_header(path)
    kind: FileKind = identify_header(header)
    if not (kind.is_model or kind.is_denoiser):
        return None
    shapes = {original: header.shapes[name] for original, name in original_names(kind.model, header.shapes).items()}
    return Architecture(part_configs(spec, configs_of_model(kind.model, shapes, header.metadata)))
