"""What a run keeps on the way: backups to go on from, saves to use."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from modules.settings.every import Every
from modules.settings.field import Section, Setting


class Backup(Section):
    """Backups, from which a run goes on; and saves, which other programs can use."""

    every: Annotated[
        Every,
        Setting(
            "Back up",
            "How often everything is written that is needed to go on after a crash.",
            group="Backups",
            changeable_on_resume=True,
        ),
    ] = Every(n=30, unit="minute")
    keep: Annotated[
        int,
        Ge(0),
        Le(1000),
        Setting(
            "Keep the newest",
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
            "Lets a finished or stopped run go on later, with more epochs for example.",
            group="Backups",
            changeable_on_resume=True,
        ),
    ] = True
    save_every: Annotated[
        Every,
        Setting(
            "Save the model",
            "How often a usable file is written to the run's save folder, to compare and choose from.",
            group="Saves",
            changeable_on_resume=True,
        ),
    ] = Every()
    save_skip_first: Annotated[
        Every,
        Setting(
            "No saves before",
            "Once this much of the run has passed, saves begin.",
            group="Saves",
            level="advanced",
            changeable_on_resume=True,
            not_yet="ignored",
        ),
    ] = Every()
    save_prefix: Annotated[
        str,
        Setting(
            "File name begins with",
            "The beginning of the names of saved files.",
            group="Saves",
            level="advanced",
            empty_means="the name of the result",
            changeable_on_resume=True,
        ),
    ] = ""
