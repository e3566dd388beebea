"""The files of the perceptual distance in the loss of a VAE."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import uses_perceptual_distance
from modules.config.schema import Config
from modules.objectives.perceptual_files import problems_of_files
from modules.system.problem import Problem


def problems_of_perceptual(config: Config) -> Iterator[Problem]:
    """Yield missing or unsuitable files as errors, and coming downloads as infos."""
    if uses_perceptual_distance(config):
        model = config.model
        yield from problems_of_files(config.training.vae, offline=model.offline, hub_cache_dir=model.hub_cache_dir)
