"""What files may ask for and the engine does not do yet is an error, never silence."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.support import unsupported
from modules.system.problem import Problem


def supported(config: Config) -> Iterator[Problem]:
    """Yield what is asked for and not done yet: marked fields and choices, and the model types of other families."""
    yield from unsupported(config)
    rest = config.unknown.get("onetrainer")
    model_type = rest.get("model_type") if isinstance(rest, dict) else None
    if model_type:
        yield Problem(
            "model.family",
            f"The file asks for a model of the kind {model_type}, which is not supported yet.",
            advice="Choose a base model of a family that is supported, in a fresh config.",
        )
