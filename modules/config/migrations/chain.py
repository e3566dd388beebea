"""The chain of migrations, from any older file to the newest version.

A file with `darkroom_version` is ours. A file with OneTrainer's `__version` (0 to 11), or without a version but with
OneTrainer's keys, goes through OneTrainer's steps first (`onetrainer_chain`), then the step to our version 1, then our
own steps.

Each step is a pure function from dict to dict, and total: a missing key is ordinary input. Steps append their reports
to the notes that they get.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from modules.config.migrations import darkroom_steps
from modules.config.migrations.darkroom_cloud import with_cloud_set_aside
from modules.system.problem import Problem, quote

Tree = dict[str, Any]
Step = Callable[[Tree, list[Problem]], Tree]

# The version of a file without one: with today's names, and the defaults of the last version that files need not state.
_UNSTATED = 2
_DARKROOM_STEPS: dict[int, Step] = {
    1: darkroom_steps.to_darkroom_2,
    2: darkroom_steps.to_darkroom_3,
    3: darkroom_steps.to_darkroom_4,
    4: darkroom_steps.to_darkroom_5,
    5: darkroom_steps.to_darkroom_6,
    6: darkroom_steps.to_darkroom_7,
}
NEWEST_DARKROOM = max(_DARKROOM_STEPS) + 1
_STATES_DEFAULTS = frozenset({6})
"""The steps that only state their version's defaults; a file that is laid over other settings has those instead."""


def is_onetrainer(tree: Tree) -> bool:
    """Return whether a tree is OneTrainer's. The migrations are imported only for a tree without our version."""
    if "darkroom_version" in tree:
        return False
    from modules.config.migrations.onetrainer_chain import has_onetrainer_keys

    return has_onetrainer_keys(tree)


def migrate(raw: Tree, *, is_whole: bool = True) -> tuple[Tree, list[Problem], bool]:
    """Return the tree at our newest version, the notes, and whether anything had to be migrated.

    `is_whole`: settings missing from the tree have the defaults of its version; otherwise it is laid over others.
    """
    tree, notes = copy.deepcopy(raw), list[Problem]()
    if is_onetrainer(tree):
        from modules.config.migrations.onetrainer_11 import to_darkroom_1
        from modules.config.migrations.onetrainer_chain import to_onetrainer_11

        ours = _upgrade(to_darkroom_1(to_onetrainer_11(tree, notes), notes), 1, notes, is_whole=is_whole)
        return darkroom_steps.with_choices(darkroom_steps.without_debug_dump(ours, notes)), notes, True
    is_stated = "darkroom_version" in tree
    version = _version(tree["darkroom_version"], NEWEST_DARKROOM) if is_stated else _UNSTATED
    if version > NEWEST_DARKROOM:
        notes.append(
            Problem(
                "darkroom_version",
                f"The file is from a newer Darkroom (version {quote(version)}); only known settings are loaded.",
                "warning",
            )
        )
    tree = darkroom_steps.without_removed(
        _upgrade(with_cloud_set_aside(tree, notes), version, notes, is_whole=is_whole), notes
    )
    tree["darkroom_version"] = NEWEST_DARKROOM
    return tree, notes, is_stated and version < NEWEST_DARKROOM


def _upgrade(tree: Tree, version: int, notes: list[Problem], *, is_whole: bool) -> Tree:
    """Return one of our trees, of the given version, at the newest version."""
    for step in range(max(version, 1), NEWEST_DARKROOM):
        if is_whole or step not in _STATES_DEFAULTS:
            tree = _DARKROOM_STEPS[step](tree, notes)
    return tree


def _version(value: object, fallback: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else fallback
