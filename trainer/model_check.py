"""What can be known of a base model before it is loaded: whether it is there, whole, and of the family. Torch-free."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from modules.config.problem import Problem, cut
from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.families.spec import FamilySpec
from modules.formats.signs.folders import folder_kind
from modules.system.paths import from_root

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def problems_of_model(config: Config) -> Iterator[Problem]:
    """Yield what is wrong with the base model, and what will be otherwise with it than the config says."""
    yield from _base_model(config)
    yield from _vae(config)


def _base_model(config: Config) -> Iterator[Problem]:
    name = config.model.base_model.strip()
    folder = from_root(name)
    spec = FAMILIES[config.model.family]
    kind = kind_of(folder)
    if kind == "folder" and name:
        yield from _diffusers_folder(folder, name, spec)
    elif kind == "file":
        yield Problem(
            "model.base_model",
            f"{name} is a single file, which is not supported yet.",
            advice="Choose a folder in diffusers layout or a Hugging Face repository.",
        )
    elif not _REPOSITORY.fullmatch(name):
        yield Problem(
            "model.base_model",
            f"There is no model at {cut(name, max_chars=200) or 'an empty name'}.",
            advice="Choose a folder in diffusers layout, or name a repository as owner/model.",
        )


def _diffusers_folder(folder: Path, name: str, spec: FamilySpec) -> Iterator[Problem]:
    try:
        index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
        kind = str(index.get("_class_name", "")) if isinstance(index, dict) else ""
    except (OSError, ValueError, RecursionError):
        yield Problem(
            "model.base_model",
            f"{name} is no model folder in diffusers layout: it has no model_index.json that can be read.",
            advice="Choose the folder that holds model_index.json.",
        )
        return
    if kind not in spec.pipelines:
        other = next((s.label for s in FAMILIES.values() if kind in s.pipelines), "")
        yield Problem(
            "model.base_model",
            f"{name} is a {kind or 'model of unknown kind'}, not {spec.label}.",
            advice=f"Set the model family to {other}." if other else "Choose a model of this family.",
        )
        return
    for part in spec.parts:
        if not (folder / part.name / "config.json").is_file():
            yield Problem(
                "model.base_model",
                f"{name} is incomplete: {part.name}/config.json is missing.",
                advice="Download or copy the model again.",
            )
    found = folder_kind(folder)
    if found.zero_snr and found.prediction == "epsilon":
        yield Problem(
            "model.base_model",
            f"{name} is to predict epsilon with zero terminal SNR, which cannot be learned.",
            advice="In scheduler_config.json prediction_type must be v_prediction, or rescale_betas_zero_snr false.",
        )


def _vae(config: Config) -> Iterator[Problem]:
    spec = FAMILIES[config.model.family]
    for part in spec.parts:
        if part.role == "vae" and spec.vae_overflows and config.part(part.name).dtype == "float16":
            yield Problem(
                f"parts.{part.name}.dtype",
                f"The VAE of {spec.label} overflows in float16: it is kept in float32, but for one whose own config "
                "says that float16 will do.",
                "info",
            )


def kind_of(path: Path) -> Literal["folder", "file", ""]:
    """Return what is at a path; nothing where there is nothing, or where no path can be."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    return "folder" if stat.S_ISDIR(mode) else "file"
