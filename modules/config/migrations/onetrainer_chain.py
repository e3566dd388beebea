"""OneTrainer's steps of the chain, from any version of its configs to its version 11.

They check keys alone and do nothing to a newer tree; only 3 to 4 and 8 to 9 add keys that a newer tree may lack, and
are skipped if the file is proven to be newer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from modules.config.migrations.eras import Era, era_of, first_step_for
from modules.config.migrations.old_defaults import with_old_defaults
from modules.config.migrations.onetrainer_keys import NEWEST
from modules.config.migrations.onetrainer_steps import (
    to_1,
    to_2,
    to_3,
    to_4,
    to_5,
    to_6,
    to_7,
    to_8,
    to_9,
    to_10,
    to_11,
)
from modules.system.problem import Problem, shown

Tree = dict[str, Any]
Step = Callable[[Tree, list[Problem]], Tree]

ONETRAINER_STEPS: tuple[Step, ...] = (to_1, to_2, to_3, to_4, to_5, to_6, to_7, to_8, to_9, to_10, to_11)


def to_onetrainer_11(tree: Tree, notes: list[Problem]) -> Tree:
    """Return an OneTrainer tree of any version, or without a version, at version 11.

    A version in the file decides about the defaults; keys older than that version are still migrated.
    """
    stated = _stated_version(tree, notes)
    era = era_of(tree) if stated is None else Era(stated, stated)
    oldest = first_step_for(tree)
    _report_age(stated, era, oldest, notes)
    # The last step runs on version 11 too: the raw default of its format has the old name.
    for step in ONETRAINER_STEPS[min(era.first, oldest, NEWEST - 1) :]:
        tree = step(tree, notes)
    return with_old_defaults(tree, era, notes)


def _stated_version(tree: Tree, notes: list[Problem]) -> int | None:
    """Return the version in the file; None if it is missing or invalid. Numbers in quotes are accepted."""
    given: Any = tree.get("__version")
    is_in_quotes = isinstance(given, str) and given.isdecimal() and len(given) < 10
    if is_in_quotes or (isinstance(given, float) and given.is_integer()):
        given = int(given)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if given is not None:
        message = f"{shown(given)} is not a valid OneTrainer config version; the version is inferred from the settings."
        notes.append(Problem("", message, "warning"))
    return None


def _report_age(stated: int | None, era: Era, oldest: int, notes: list[Problem]) -> None:
    """Report the version of a file, and whether it has settings of an older version."""
    if stated is not None and stated > NEWEST:
        message = f"The file is from a newer OneTrainer (version {shown(stated)}); only known settings are loaded."
        notes.append(Problem("", message, "warning"))
        return
    if stated is None:
        versions = f"version {era.last}" if era.first == era.last else f"versions {era.first} to {era.last}"
        message = f"This OneTrainer config has no version; its settings are those of {versions}. It was"
    elif oldest < stated:
        message = f"This is a OneTrainer config of version {stated} with settings of version {oldest}; it was"
    else:
        message = f"This is a OneTrainer config of version {stated}; it was"
    if min(era.last, oldest) < NEWEST:
        notes.append(Problem("", f"{message} migrated.", "info"))
