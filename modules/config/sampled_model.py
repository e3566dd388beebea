"""The model that the samples of a config are drawn with: its sampling model, or its base model."""

from __future__ import annotations

from modules.config.schema import Config
from modules.config.usage import uses_denoiser
from modules.families.kinds.identify import identify
from modules.families.kinds.registry import serves_as
from modules.system.paths import from_root


def config_of_samples(config: Config) -> Config:
    """Return a config whose model is the one that samples are drawn with: the sampling model, without training adapter.

    A sampling model that is a denoiser alone is the denoiser's file; any other is the base model.
    """
    model = config.model.model_copy(update={"training_adapter": ""})
    name, denoiser = config.sampling.model.strip(), config.family.denoiser.name
    if not name or not uses_denoiser(config):
        return config.model_copy(update={"model": model})
    kind = identify(from_root(name))
    is_denoiser = serves_as(kind, "denoiser") and not kind.is_model
    model = model if is_denoiser else model.model_copy(update={"base_model": name})
    part = config.part(denoiser).model_copy(update={"file": name if is_denoiser else ""})
    return config.model_copy(update={"model": model, "parts": {**config.parts, denoiser: part}})


def model_name_of_samples(config: Config) -> str:
    """Return the name of the model that samples are drawn with, as the user set it."""
    return config.sampling.model.strip() or config.model.base_model


def without_training_adapter(config: Config) -> Config:
    """Return a config without training adapter, for a model that is not trained."""
    return config.model_copy(update={"model": config.model.model_copy(update={"training_adapter": ""})})


def without_additions(config: Config) -> Config:
    """Return a config without training adapter and sampling model."""
    model = config.model.model_copy(update={"training_adapter": ""})
    return config.model_copy(update={"model": model, "sampling": config.sampling.model_copy(update={"model": ""})})
