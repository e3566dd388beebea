"""OneTrainer's lists: each entry is converted on its own, and its unused keys are kept."""

from __future__ import annotations

from collections.abc import Callable, Container

from modules.config.migrations.tree_moves import Notes, Tree
from modules.system.problem import Problem, shown

Convert = Callable[[Tree, Notes, str], Tree]


def converted(given: object, theirs: str, ours: str, convert: Convert, notes: Notes) -> tuple[list[Tree], list[Tree]]:
    """Return our entries for their list, and the unused keys of each; invalid entries are reported and left out.

    `theirs` is the name of the entries in messages, `ours` the path of our list.
    """
    if not isinstance(given, list):
        if given is not None:
            notes.append(Problem(ours, f"{shown(given)} is not a list of {theirs}; it is left out.", "warning"))
        return [], []
    entries: list[Tree] = []
    leftovers: list[Tree] = []
    for item in given:
        if not isinstance(item, dict):
            notes.append(
                Problem(ours, f"{shown(item)} in the list of {theirs} is not an object; it is left out.", "warning")
            )
            continue
        left = {k: v for k, v in item.items() if not k.startswith("__")}
        entries.append(convert(left, notes, f"{ours}.{len(entries)}"))
        leftovers.append(left)
    return entries, leftovers if any(leftovers) else []


def is_key(value: object, names: Container[str]) -> bool:
    """Return whether a value is a string and one of the names."""
    return isinstance(value, str) and value in names


def plain(value: object) -> str:
    """Return a short name unchanged, and anything else as messages quote it."""
    return value if isinstance(value, str) and len(value) < 40 else shown(value)
