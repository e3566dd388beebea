"""Lists of OneTrainer's: each entry converted by itself, what is not understood of it kept in its place."""

from __future__ import annotations

from collections.abc import Callable, Container

from modules.config.migrations.taking import Notes, Tree
from modules.system.problem import Problem, shown

Convert = Callable[[Tree, Notes, str], Tree]


def converted(given: object, theirs: str, ours: str, convert: Convert, notes: Notes) -> tuple[list[Tree], list[Tree]]:
    """Return our entries for a list of theirs, and what is left of each; what is no entry is told and left out.

    `theirs` is what the entries are called in messages, `ours` the path of our list.
    """
    if not isinstance(given, list):
        if given is not None:
            notes.append(Problem(ours, f"{shown(given)} is no list of {theirs}; it is left out.", "warning"))
        return [], []
    entries: list[Tree] = []
    leftovers: list[Tree] = []
    for item in given:
        if not isinstance(item, dict):
            notes.append(
                Problem(ours, f"{shown(item)} stands among the {theirs} and is not one; it is left out.", "warning")
            )
            continue
        left = {k: v for k, v in item.items() if not k.startswith("__")}
        entries.append(convert(left, notes, f"{ours}.{len(entries)}"))
        leftovers.append(left)
    return entries, leftovers if any(leftovers) else []


def is_key(value: object, names: Container[str]) -> bool:
    """Return whether a value is a text and one of some names."""
    return isinstance(value, str) and value in names


def plain(value: object) -> str:
    """Return a name as it is, and anything else as messages quote it."""
    return value if isinstance(value, str) and len(value) < 40 else shown(value)
