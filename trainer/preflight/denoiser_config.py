"""The config of the denoiser of a run, from the files of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.config.quantized_parts import part_source
from modules.config.schema import Config
from modules.estimate.architecture import architecture_of
from trainer.preflight.model import downloaded_folder


def denoiser_config(config: Config) -> Mapping[str, Any]:
    """Return the config of the denoiser: of its own file, of the base model, or of the published model of its name.

    Empty where the files do not contain one, and for a repository that is neither downloaded nor published.
    """
    denoiser = config.family.denoiser
    folder = None if config.part(denoiser.name).file.strip() else downloaded_folder(config)
    architecture = architecture_of(str(folder) if folder else part_source(config, denoiser), config.family.name)
    return {} if architecture is None else architecture.configs.get(denoiser.name, {})
