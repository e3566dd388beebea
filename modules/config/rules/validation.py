"""Validation: what is asked of it can happen."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.settings.every import Moment
from modules.system.problem import Problem


def validation(config: Config) -> Iterator[Problem]:
    """What rests on validation is asked for only where it is on, has images, and comes often enough.

    How often it comes is known here where it goes by epochs; by steps it needs the images, by time nobody knows.
    """
    settings = config.validation
    if settings.every.is_never:
        yield from _rests_on_nothing(config)
        return
    yield from _measures_nothing(config)
    if settings.every.unit == "epoch":
        end = Moment(step=0, epoch=config.training.epochs, seconds=0.0)
        yield from too_seldom(config, settings.every.times(end))


def too_seldom(config: Config, num_validations: int) -> Iterator[Problem]:
    """Yield what so few validations, those before the first step aside, make of what rests on them."""
    settings = config.validation
    if num_validations == 0:
        yield Problem(
            "validation.every",
            f"The run is over before a validation comes, {settings.every}: "
            + ("no model can be kept as the best." if settings.keep_best else "nothing is measured after the start."),
            "error" if settings.keep_best and settings.result == "best" else "warning",
            "Validate more often.",
        )
    elif settings.early_stopping_patience >= num_validations:
        times = f"{num_validations:,} times" if num_validations > 1 else "once"
        yield Problem(
            "validation.early_stopping_patience",
            f"The run is to stop early after {settings.early_stopping_patience:,} validations that are not better "
            f"than one "
            f"before, and it validates {times}: that never comes.",
            "warning",
            "Lower it, validate more often, or set it to 0.",
        )


def _rests_on_nothing(config: Config) -> Iterator[Problem]:
    settings = config.validation
    for name, is_asked, what in (
        ("keep_best", settings.keep_best, "The best model is to be kept"),
        ("early_stopping_patience", settings.early_stopping_patience > 0, "The run is to stop early"),
    ):
        if is_asked:
            yield Problem(
                f"validation.{name}",
                f"{what} by the validation loss, but validation is off.",
                advice="Say how often to validate, or switch this off.",
            )


def _measures_nothing(config: Config) -> Iterator[Problem]:
    concepts = [(i, c) for i, c in enumerate(config.concepts) if c.enabled and c.kind == "validation"]
    for index, concept in concepts:
        if concept.repeats == 0:
            is_all = all(c.repeats == 0 for _, c in concepts)
            yield Problem(
                f"concepts.{index}.repeats",
                f"The validation concept {concept.name or f'number {index + 1}'} has 0 repeats: its images are never "
                f"measured{', and there is no other' if is_all else ''}.",
                "error" if is_all else "warning",
                "Set its repeats to 1, or disable the concept.",
            )
