"""Settings that files may contain but that are not supported yet are an error, never silently ignored."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.support import unsupported
from modules.system.problem import Problem


def supported(config: Config) -> Iterator[Problem]:
    """Yield problems for unsupported settings and choices, and for the model types of other families."""
    yield from unsupported(config)
    rest = config.unknown.get("onetrainer")
    model_type = rest.get("model_type") if isinstance(rest, dict) else None
    if model_type:
        yield Problem(
            "model.family",
            f"The file is for a model of the type {model_type}, which is not supported yet.",
            advice="Start a new config with a base model of a supported family.",
        )
