"""The chain of migrations, from any older file to today's version.

A file with `darkroom_version` is ours. A file with OneTrainer's `__version` (0 to 11), or without any version but with
keys of OneTrainer's, is an older ancestor: those steps come first, then the step into our version 1, then ours.
Each step is a pure function from dict to dict, total: a missing key is ordinary input. A step that has something to
tell appends to the notes it is given. Each of OneTrainer's steps looks at keys alone and finds nothing to do in a tree
that is newer; only 3 to 4 and 8 to 9 add what a newer tree may leave unsaid, and a proven age spares it those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from modules.config.migrations.darkroom_1 import to_darkroom_2
from modules.config.migrations.darkroom_cloud import cloud_kept_aside
from modules.config.migrations.eras import Era, era_of, first_step_for, is_onetrainer
from modules.config.migrations.old_defaults import with_old_defaults
from modules.config.migrations.onetrainer_00 import to_1
from modules.config.migrations.onetrainer_01 import to_2
from modules.config.migrations.onetrainer_02_to_07 import to_3, to_4, to_5, to_6, to_7, to_8
from modules.config.migrations.onetrainer_08_to_09 import to_9, to_10
from modules.config.migrations.onetrainer_10 import to_11
from modules.config.migrations.onetrainer_11 import to_darkroom_1
from modules.config.migrations.onetrainer_keys import NEWEST
from modules.system.problem import Problem, shown

__all__ = ["NEWEST_DARKROOM", "ONETRAINER_STEPS", "Step", "Tree", "is_onetrainer", "migrate", "to_onetrainer_11"]

Tree = dict[str, Any]
Step = Callable[[Tree, list[Problem]], Tree]

NEWEST_DARKROOM = 2
ONETRAINER_STEPS: tuple[Step, ...] = (to_1, to_2, to_3, to_4, to_5, to_6, to_7, to_8, to_9, to_10, to_11)
_DARKROOM_STEPS: dict[int, Step] = {1: to_darkroom_2}


def migrate(raw: Tree) -> tuple[Tree, list[Problem], bool]:
    """Return the tree at our newest version, what was noticed, and whether anything had to be migrated."""
    tree, notes = copy.deepcopy(raw), list[Problem]()
    if is_onetrainer(tree):
        return _brought_up(to_darkroom_1(to_onetrainer_11(tree, notes), notes), 1, notes), notes, True
    version = _version(tree.get("darkroom_version", NEWEST_DARKROOM), NEWEST_DARKROOM)
    if version > NEWEST_DARKROOM:
        notes.append(
            Problem(
                "darkroom_version",
                f"The file was written by a newer Darkroom (version {shown(version)}); what is known here is loaded.",
                "warning",
            )
        )
    tree = _brought_up(cloud_kept_aside(tree, notes), version, notes)
    tree["darkroom_version"] = NEWEST_DARKROOM
    return tree, notes, version < NEWEST_DARKROOM


def _brought_up(tree: Tree, version: int, notes: list[Problem]) -> Tree:
    """Return a tree of ours, of a version, at the newest one."""
    for step in range(max(version, 1), NEWEST_DARKROOM):
        tree = _DARKROOM_STEPS[step](tree, notes)
    return tree


def to_onetrainer_11(tree: Tree, notes: list[Problem]) -> Tree:
    """Return an OneTrainer tree of any version, or of none that it says, as version 11 would hold it.

    A version that is said counts for the defaults; a key that is older than it still has its step done.
    """
    said = _said_version(tree, notes)
    era = era_of(tree) if said is None else Era(said, said)
    oldest = first_step_for(tree)
    _tell_age(said, era, oldest, notes)
    # The last step runs on version 11 too: the raw default of its format has the old name.
    for step in ONETRAINER_STEPS[min(era.first, oldest, NEWEST - 1) :]:
        tree = step(tree, notes)
    return with_old_defaults(tree, era, notes)


def _said_version(tree: Tree, notes: list[Problem]) -> int | None:
    """Return the version that a file says; None where it says none, or nonsense. Numbers in quotes are numbers."""
    given: Any = tree.get("__version")
    is_in_quotes = isinstance(given, str) and given.isdecimal() and len(given) < 10
    if is_in_quotes or (isinstance(given, float) and given.is_integer()):
        given = int(given)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if given is not None:
        message = f"{shown(given)} is no version of a config of OneTrainer's; the file's age is read from its settings."
        notes.append(Problem("", message, "warning"))
    return None


def _tell_age(said: int | None, era: Era, oldest: int, notes: list[Problem]) -> None:
    """Tell which version a file is of, and whether it has settings that are older still."""
    if said is not None and said > NEWEST:
        message = f"The file is of a newer OneTrainer (version {shown(said)}); what is known is loaded."
        notes.append(Problem("", message, "warning"))
        return
    if said is None:
        versions = f"version {era.last}" if era.first == era.last else f"versions {era.first} to {era.last}"
        message = f"This OneTrainer config says no version; its settings are those of {versions}. It was"
    elif oldest < said:
        message = f"This is a config of OneTrainer's version {said} with settings of version {oldest}; it was"
    else:
        message = f"This is a config of OneTrainer's version {said}; it was"
    if min(era.last, oldest) < NEWEST:
        notes.append(Problem("", f"{message} brought up to date.", "info"))


def _version(value: object, fallback: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else fallback
