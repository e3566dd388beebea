"""Files on this machine for the parts that the file of a denoiser alone lacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.families.spec import PartSpec
from modules.settings.edit import replace_value
from modules.system.paths import as_config_path, from_root
from trainer.preflight.model import problems_of_model
from trainer.preflight.part_files import path_of, problems_of_part_files


def fitting_files(config: Config, files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the files that fit each part which the base model lacks, in their order; an empty list where none does.

    The base model of `config` is the file of a denoiser. A VAE is compared by its class and its latent channels alone,
    which families share: a person has to confirm it.
    """
    base = identify(from_root(config.model.base_model))
    there = {config.family.denoiser.name, *base.facts.get("also", "").split(", ")}
    return {
        part.name: [file for file in files if _fits(config, part, file)]
        for part in config.family.parts
        if part.name not in there
    }


def _fits(config: Config, part: PartSpec, file: Path) -> bool:
    """Return whether the checks before a run have no error about a file as that of a part."""
    path = path_of(part)
    trial = replace_value(config, path, as_config_path(file))
    problems = problems_of_model(trial, None) if part.role == "vae" else problems_of_part_files(trial)
    return not any(p.path == path and p.severity == "error" for p in problems)
