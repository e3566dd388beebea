"""The model that the samples of a config are drawn with: its sampling model, or its base model."""

from __future__ import annotations

from modules.config.schema import Config
from modules.config.sections.model import Model
from modules.config.usage import uses_denoiser
from modules.families.kinds.identify import identify
from modules.families.kinds.registry import serves_as
from modules.system.paths import from_root


def model_of_samples(config: Config) -> Model:
    """Return the settings of the model that samples are drawn with: the sampling model, without training adapter."""
    model = config.model.model_copy(update={"training_adapter": ""})
    name = config.sampling.model.strip()
    if not name or not uses_denoiser(config):
        return model
    kind = identify(from_root(name))
    is_denoiser = serves_as(kind, "denoiser") and not kind.is_model
    return model.model_copy(
        update={"denoiser_file": name} if is_denoiser else {"base_model": name, "denoiser_file": ""}
    )


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
