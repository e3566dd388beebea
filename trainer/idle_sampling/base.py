"""The base model of a request. Torch-free."""

from __future__ import annotations

from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.system.errors import DarkroomError
from modules.system.paths import from_root


def with_model(config: Config, base_model: str) -> Config:
    """Return a config with another base model, with the family and the variant that its file or folder has.

    A name on the Hugging Face Hub keeps those of the config.
    """
    path = from_root(base_model)
    updates: dict[str, str] = {"base_model": base_model}
    if path.exists():
        kind = identify(path)
        if not kind.is_model:
            raise DarkroomError(
                f"{path.name} is not a whole model. {kind.sentence}",
                advice="Choose a model file or a diffusers folder.",
            )
        updates |= {"family": kind.family, "variant": kind.variant or "text_to_image"}
    return config.model_copy(update={"model": config.model.model_copy(update=updates)})
