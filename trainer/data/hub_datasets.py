"""Concepts whose images are on the Hugging Face hub: their local folders."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants

from modules.config.schema import Config
from modules.data.concept import Concept
from modules.data.hub import HubDataset
from modules.system.paths import from_root


def hub_datasets(config: Config) -> list[HubDataset]:
    """Return the data sets of the enabled concepts that are on the hub, each once."""
    datasets = (HubDataset.of(c.path) for c in config.concepts if c.enabled)
    return list(dict.fromkeys(d for d in datasets if d is not None))


def hub_cache_dir(config: Config) -> Path:
    """Return the cache of huggingface_hub that a config uses."""
    return from_root(config.model.hub_cache_dir.strip() or constants.HF_HUB_CACHE)


def with_local_folders(config: Config) -> Config:
    """Return a config in which the concepts on the hub have their local folders, as far as they are downloaded.

    A concept without a name gets the name of its repository.
    """
    if not hub_datasets(config):
        return config
    cache_dir = hub_cache_dir(config)
    return config.model_copy(update={"concepts": tuple(_local(c, cache_dir) for c in config.concepts)})


def _local(concept: Concept, cache_dir: Path) -> Concept:
    dataset = HubDataset.of(concept.path)
    folder = dataset.local_folder(cache_dir) if dataset is not None else None
    if dataset is None or folder is None:
        return concept
    return concept.model_copy(update={"path": str(folder), "name": concept.name or dataset.name.partition("/")[2]})
