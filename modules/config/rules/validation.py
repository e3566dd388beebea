"""Validation: the settings that depend on it can take effect."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.rules.images import NAMES_OF_ZERO
from modules.config.schema import Config
from modules.settings.every import Moment
from modules.system.problem import Problem


def validation(config: Config) -> Iterator[Problem]:
    """Yield problems with settings that need validation: it must be on, have images, and run often enough.

    Validations by epoch are counted here; by step that needs the images, and by time it is unknown before the run.
    """
    settings = config.validation
    if settings.every.is_never:
        yield from _without_validation(config)
        return
    yield from _concepts_without_repeats(config)
    if settings.every.unit == "epoch":
        end = Moment(step=0, epoch=config.training.epochs, seconds=0.0)
        yield from too_few_validations(config, settings.every.times(end))


def too_few_validations(config: Config, num_validations: int) -> Iterator[Problem]:
    """Yield problems caused by too few validations, not counting those before the first step."""
    settings = config.validation
    if num_validations == 0:
        yield Problem(
            "validation.every",
            f"The run ends before the first validation, {settings.every}: "
            + ("no best checkpoint can be kept." if settings.keep_best else "nothing is measured after the start."),
            "error" if settings.keep_best and settings.result == "best" else "warning",
            "Validate more often.",
        )
    elif settings.early_stopping_patience >= num_validations:
        times = f"{num_validations:,} times" if num_validations > 1 else "once"
        yield Problem(
            "validation.early_stopping_patience",
            f"Early stopping needs {settings.early_stopping_patience:,} validations without a new best after the "
            f"first one, but the run validates only {times}: it never stops early.",
            "warning",
            "Lower it, validate more often, or set it to 0.",
        )


def _without_validation(config: Config) -> Iterator[Problem]:
    settings = config.validation
    for name, is_on, effect in (
        ("result", settings.keep_best and settings.result == "best", "The best checkpoint becomes the result"),
        ("early_stopping_patience", settings.early_stopping_patience > 0, "The run stops early"),
    ):
        if is_on:
            yield Problem(
                f"validation.{name}",
                f"{effect} by the validation loss, but validation is off.",
                advice="Set how often to validate, or switch this off.",
            )


def _concepts_without_repeats(config: Config) -> Iterator[Problem]:
    concepts = [(i, c) for i, c in enumerate(config.concepts) if c.enabled and c.dataset_kind == "validation"]
    for index, concept in concepts:
        if concept.zero_field:
            is_all = all(c.zero_field for _, c in concepts)
            what = NAMES_OF_ZERO[concept.zero_field]
            yield Problem(
                f"concepts.{index}.{concept.zero_field}",
                f"The validation concept {concept.name or f'number {index + 1}'} has 0 {what}: its images are never "
                f"measured{', and there is no other' if is_all else ''}.",
                "error" if is_all else "warning",
                f"Raise its {what}, or disable the concept.",
            )
