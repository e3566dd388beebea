"""The files that a run writes while it trains: backups to resume from, and saved models."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from modules.settings.every import Every
from modules.settings.field import Section, Setting


class Backup(Section):
    """Backups, from which a run can be resumed, and saves, which other programs can load."""

    every: Annotated[
        Every,
        Setting(
            "Back up every",
            "How often a backup is written, from which the run can resume.",
            group="Backups",
            changeable_on_resume=True,
        ),
    ] = Every(n=30, unit="minute")
    keep: Annotated[
        int,
        Ge(0),
        Le(1000),
        Setting(
            "Rolling backups",
            "Older backups of the same run are removed; 0 keeps all.",
            unit="backups",
            group="Backups",
            changeable_on_resume=True,
        ),
    ] = 3
    at_end: Annotated[
        bool,
        Setting(
            "Back up at the end",
            "Lets a finished run resume later, for example with more epochs.",
            group="Backups",
            changeable_on_resume=True,
        ),
    ] = True
    save_every: Annotated[
        Every,
        Setting(
            "Save every",
            "How often the model is saved to the run's save folder, to compare and choose from.",
            group="Saves",
            changeable_on_resume=True,
        ),
    ] = Every()
    save_skip_first: Annotated[
        Every,
        Setting(
            "Save skip first",
            "Saving begins once this much of the run has passed.",
            group="Saves",
            level="advanced",
            changeable_on_resume=True,
        ),
    ] = Every()
    save_prefix: Annotated[
        str,
        Setting(
            "Save file name prefix",
            "The prefix of the names of saved files.",
            group="Saves",
            level="advanced",
            empty_means="the name of the result",
            changeable_on_resume=True,
        ),
    ] = ""
