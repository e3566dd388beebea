"""The last good run next to the current one: its pace, and what changed since if a run is slow or fails."""

from __future__ import annotations

import logging
from pathlib import Path

from trainer.callbacks.pace import EarlierPace
from trainer.events import WarningRaised
from trainer.run.recipe import start_recipe, with_this_attempt
from trainer.run.setup import RunSetup
from trainer.run_folder.differences import listed
from trainer.run_folder.recipe import known_recipe
from trainer.run_folder.since_last_good import (
    CAUSES_OF_FAILURE,
    CAUSES_OF_SLOWNESS,
    LEAST_PACE_STEPS,
    since_last_good,
)

logger = logging.getLogger("darkroom.run")


def earlier_pace(run_dir: Path) -> EarlierPace | None:
    """Return the pace of the last good run before a run, if its steps compute the same."""
    try:
        since = since_last_good(run_dir)
    except (OSError, ValueError):  # as of a drive that is gone: it must not end this run
        logger.warning("The last good run could not be read.", exc_info=True)
        return None
    if since is None or since.good.pace is None or not since.has_equal_steps:
        return None
    pace = since.good.pace
    if pace.num_steps < LEAST_PACE_STEPS or not pace.step_seconds > 0:
        return None
    found = since.of_steps().by_likelihood(CAUSES_OF_SLOWNESS)
    changes = f"Changed since: {listed(found)}." if found else "Nothing that is recorded has changed since."
    likely = f"Likely: {found[0].text}." if len(found) > 1 else ""
    return EarlierPace(since.good.name, pace.step_seconds, changes, likely)


def report_changes(setup: RunSetup) -> None:
    """Report what changed since the last good run, for a run that fails. Raises nothing."""
    if not setup.machine.ranks.rank.is_main:
        return
    try:
        recipe = known_recipe(setup.run_dir)
        if recipe is None:  # it failed before it was set up
            recipe = start_recipe(setup, (setup.datasets.training, setup.datasets.validation))
        since = since_last_good(setup.run_dir, with_this_attempt(recipe, setup) if recipe is not None else None)
    except Exception:  # the device may be broken, too: the error of the run is the one to report
        logger.exception("What changed since the last good run could not be found out.")
        return
    if since is not None:
        setup.log.emit(WarningRaised(since.sentence(CAUSES_OF_FAILURE)))
