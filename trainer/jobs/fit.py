"""--fit: the settings of a run that fit a card, shown as a table, for `check` and `train`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from modules.config.codec import UnconfirmedListError, lists_to_confirm, save_file
from modules.config.schema import Config
from modules.settings.field import Section, Setting
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.data.datasets import datasets_of
from trainer.data.hub_datasets import with_local_folders
from trainer.jobs.spec import Argument
from trainer.preflight.estimates import sizes_of
from trainer.preflight.fit import Fit, bytes_words, describe_fit, factor_words, fit, free_here, size_of
from trainer.preflight.passes import trace_unknown
from trainer.preflight.report import Progress, no_progress

_AUTO = "auto"


class FitSettings(Section):
    """The card that a run has to fit, and the file for the changed config."""

    fit: Annotated[
        str,
        Setting(
            "Fit",
            "Show the fastest settings that fit a card of this size, such as 8GB, or the memory that is free now "
            "(auto); the config file stays as it is.",
        ),
        Argument(metavar="SIZE"),
    ] = ""
    save: Annotated[
        str,
        Setting(
            "Save",
            "Save the config with all changes of the command (--fit, --family, --set) in this file.",
            path_kind="save",
        ),
    ] = ""
    save_lists: Annotated[
        bool,
        Setting(
            "Save lists",
            "With --save: also write concepts and samples to the files that the config names for them outside of the "
            "folder of FILE, or that are not lists of Darkroom.",
        ),
    ] = False


def fit_config(
    config: Config, settings: FitSettings, *, is_run: bool = False, progress: Progress = no_progress
) -> tuple[Fit, str]:
    """Return the settings that fit the card of --fit, and the table of changes; save the config as --save demands.

    `is_run`: the run is to start on this machine, so its device counts whatever the size.
    Raises DarkroomError for an invalid size, without an estimate, and if a file cannot be written.
    """
    card_bytes, is_here = card_of(settings.fit, config)
    trace_unknown(config, progress)
    datasets = datasets_of(with_local_folders(config), partial(progress, "scanning"))
    sizes = sizes_of(datasets.training, datasets.validation)
    result = fit(config, sizes, card_bytes=card_bytes, is_this_card=is_here or is_run)
    if result is None:
        raise DarkroomError(
            "The memory of this run cannot be estimated, so --fit has nothing to choose by.",
            advice="It needs images and a base model whose shapes are known. check lists what is wrong.",
        )
    lines = list(fit_lines(result))
    if settings.save:
        lines.append(save_changed(result.config, settings))
    return result, "".join(f"{line}\n" for line in lines)


def card_of(text: str, config: Config) -> tuple[int, bool]:
    """Return the bytes of a size such as "8GB", and whether it is the free memory of this machine ("auto").

    Raises DarkroomError for anything else.
    """
    if text.strip().lower() == _AUTO:
        free = free_here(config)
        if free is None:
            raise DarkroomError(
                f"The free memory of the device {config.general.train_device} is not known.",
                advice="Give the size of the card, such as --fit 8GB.",
            )
        return free, True
    size = size_of(text)
    if size is None:
        raise DarkroomError(f"--fit {text} is not a size of memory.", advice="Write it as 8GB, or auto.")
    return size, False


def fit_lines(choice: Fit) -> Iterator[str]:
    """Yield the changes as a table, then the outcome."""
    if choice.changes:
        rows = [("Change", "Memory", "Time of a step")]
        for change in choice.changes:
            words = f"{change.move.words[:1].upper()}{change.move.words[1:]} ({change.move.path})"
            rows.append((words, bytes_words(change.saved_bytes), factor_words(change.time_factor)))
        total = ("All of them", bytes_words(choice.before_bytes - choice.after_bytes), factor_words(choice.time_factor))
        widths = [max(len(row[i]) for row in [*rows, total]) for i in range(3)]
        for row in (*rows, total):
            yield "  ".join((row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2])))
    yield describe_fit(choice)


def fit_as_json(choice: Fit) -> dict[str, Any]:
    """Return a fit as JSON values: the new values by path, and what each change saves and costs."""
    return {
        "fits": choice.fits,
        "card_bytes": choice.card_bytes,
        "limit_bytes": choice.limit_bytes,
        "before_bytes": choice.before_bytes,
        "after_bytes": choice.after_bytes,
        "time_factor": choice.time_factor,
        "words": describe_fit(choice),
        "changes": [
            {"values": dict(c.move.values), "saved_bytes": c.saved_bytes, "time_factor": c.time_factor}
            for c in choice.changes
        ],
    }


def save_changed(config: Config, settings: FitSettings) -> str:
    """Save a config in the file of --save and return a sentence.

    Raises DarkroomError if it would replace lists that are not the config's own, and OSError.
    """
    file = from_root(settings.save)
    confirmed = [problem.path for problem in lists_to_confirm(config, file)] if settings.save_lists else []
    try:
        kept = save_file(config, file, confirmed=confirmed)
    except UnconfirmedListError as error:
        raise DarkroomError(
            f"The config was not saved. {error}", advice="Add --save-lists if that file is to be written."
        ) from error
    return f"Saved as {file}." + (f" The file before is kept as {kept}." if kept else "")
