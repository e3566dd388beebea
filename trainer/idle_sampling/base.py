"""The base model of a request. Torch-free."""

from __future__ import annotations

from modules.config.schema import Config
from modules.config.variant_facts import with_kind
from modules.families.kinds.identify import identify
from modules.families.spec import BASE_VARIANT
from modules.system.errors import DarkroomError
from modules.system.paths import from_root


def with_model(config: Config, base_model: str) -> Config:
    """Return a config with another base model, with the family and the variant that its file or folder has.

    A name on the Hugging Face Hub keeps those of the config.
    """
    path = from_root(base_model)
    if path.exists():
        kind = identify(path)
        if not kind.is_model:
            raise DarkroomError(
                f"{path.name} is not a whole model. {kind.sentence}",
                advice="Choose a model file or a diffusers folder.",
            )
        config = with_kind(config, kind.family, kind.variant or BASE_VARIANT)
    return config.model_copy(update={"model": config.model.model_copy(update={"base_model": base_model})})
