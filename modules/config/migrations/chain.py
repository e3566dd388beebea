"""The chain of migrations, from any older file to today's version.

A file with `darkroom_version` is ours. A file with OneTrainer's `__version` (0 to 11), or without any version but with
keys of OneTrainer's, is an older ancestor: those steps come first, then the step into our version 1, then ours.
Each step is a pure function from dict to dict, total: a missing key is ordinary input. A step that has something to
tell appends to the notes it is given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from modules.config.migrations.onetrainer_10 import is_of_10, to_11
from modules.config.migrations.onetrainer_11 import to_darkroom_1
from modules.config.problem import Problem, shown

Tree = dict[str, Any]
Step = Callable[[Tree, list[Problem]], Tree]

NEWEST_ONETRAINER = 11
NEWEST_DARKROOM = 1
_ONETRAINER_STEPS: dict[int, Step] = {10: to_11}
_DARKROOM_STEPS: dict[int, Step] = {}


def migrate(raw: Tree) -> tuple[Tree, list[Problem], bool]:
    """Return the tree at our newest version, what was noticed, and whether anything had to be migrated."""
    tree, notes = copy.deepcopy(raw), list[Problem]()
    if is_onetrainer(tree):
        return _from_onetrainer(tree, notes), notes, True
    version = _version(tree.get("darkroom_version", NEWEST_DARKROOM), NEWEST_DARKROOM)
    if version > NEWEST_DARKROOM:
        notes.append(
            Problem(
                "darkroom_version",
                f"The file was written by a newer Darkroom (version {shown(version)}); what is known here is loaded.",
                "warning",
            )
        )
    for step in range(max(version, 1), NEWEST_DARKROOM):
        tree = _DARKROOM_STEPS[step](tree, notes)
    tree["darkroom_version"] = NEWEST_DARKROOM
    return tree, notes, version < NEWEST_DARKROOM


def is_onetrainer(tree: Tree) -> bool:
    """Return whether a tree without our version is OneTrainer's: by its version, else by flat keys of its own."""
    return "darkroom_version" not in tree and any(
        key in tree
        for key in ("__version", "training_method", "base_model_name", "model_type", "output_model_destination")
    )


def _from_onetrainer(tree: Tree, notes: list[Problem]) -> Tree:
    version = _version(tree.get("__version"), NEWEST_ONETRAINER)
    if version == NEWEST_ONETRAINER and is_of_10(tree):
        version = 10
    if version > NEWEST_ONETRAINER:
        notes.append(
            Problem(
                "",
                f"The file is of a newer OneTrainer (version {shown(version)}); what is known is loaded.",
                "warning",
            )
        )
    oldest = min(_ONETRAINER_STEPS)
    if version < oldest:
        notes.append(
            Problem(
                "",
                f"The file is of OneTrainer's config version {version}; versions before {oldest} are read as "
                f"version {oldest}.",
                "warning",
                "Look through the settings before you start.",
            )
        )
    for step in range(max(version, oldest), NEWEST_ONETRAINER):
        tree = _ONETRAINER_STEPS[step](tree, notes)
    return to_darkroom_1(tree, notes)


def _version(value: object, fallback: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else fallback
