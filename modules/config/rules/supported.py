"""What a file may ask for and the engine does not do yet."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.problem import Problem
from modules.config.schema import Config


def supported(config: Config) -> Iterator[Problem]:
    """What files may ask for and the engine does not do yet is an error, never silence."""
    if config.training.trains not in ("adapter", "full"):
        yield Problem(
            "training.trains",
            f"Training of the kind {config.training.trains!r} is not supported yet.",
            advice="Choose LoRA or fine-tune.",
        )
    model_type = _onetrainer(config).get("model_type")
    if model_type:
        yield Problem(
            "model.family",
            f"The file asks for a model of the kind {model_type}, which is not supported yet.",
            advice="Choose a base model of a family that is supported, in a fresh config.",
        )


def _onetrainer(config: Config) -> dict[str, object]:
    rest = config.unknown.get("onetrainer")
    return rest if isinstance(rest, dict) else {}
