"""Taking values out of an older tree as they are understood, so that what is left can be kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.system.problem import DEFAULT_STANDS, Problem, shown

Tree = dict[str, Any]
Notes = list[Problem]


def put(tree: Tree, path: str, value: object) -> None:
    """Set the value at a dotted path; the objects on the way are made."""
    *folders, name = path.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[name] = value


def move(rest: Tree, result: Tree, source: str, path: str) -> None:
    """Move a value, where there is one, to a path of the result."""
    if source in rest:
        put(result, path, rest.pop(source))


def choose(
    rest: Tree, result: Tree, source: str, path: str, names: Mapping[str, str], notes: Notes, *, where: str = ""
) -> None:
    """Move a name, translated by `names`; one that is not among them is told, under `where` or the path."""
    if source not in rest:
        return
    value = rest.pop(source)
    if isinstance(value, str) and value in names:
        put(result, path, names[value])
    elif value not in (None, "NONE"):
        message = f"{source} = {shown(value)} is not known here; {DEFAULT_STANDS}."
        notes.append(Problem(where or path, message, "warning"))


def taken_part(rest: Tree, key: str, notes: Notes, where: str) -> Tree:
    """Pop a nested object, without its version; anything else is told and counts as an empty one."""
    given = rest.pop(key, None)
    if isinstance(given, dict):
        return {k: v for k, v in given.items() if not k.startswith("__")}
    if given is not None:
        notes.append(
            Problem(where, f"{key} = {shown(given)} holds no settings; the defaults stand instead.", "warning")
        )
    return {}


def give_back(rest: Tree, key: str, given: Tree) -> None:
    """Put what was not understood of a nested object back where it was."""
    if given:
        rest[key] = given


def number(value: object) -> float | None:
    """Return a value as the number OneTrainer would cast it to; None where there is none, or none of any use."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    if not abs(result) < 1e15:
        return None
    return int(result) if result == int(result) else result


def move_into(tree: Tree, source: str, holder: str, key: str, notes: Notes) -> bool:
    """Move a flat value of a tree into a nested object, which is copied for it; returns whether it was moved.

    A value that is in the object already is the newer one and stands; the flat one then stays where it is, and is
    reported with all else that is not understood.
    """
    given = tree.get(holder)
    if source not in tree or (isinstance(given, dict) and key in given):
        return False
    value = tree.pop(source)
    tree[holder] = {**own_object(tree, holder, notes), key: value}
    return True


# Where our tree has what an object of theirs holds, if not under the same name among the parts of the model.
_OUR_PLACES = {"optimizer": "training.optimizer", "embedding": "embeddings.words"}


def own_object(tree: Tree, key: str, notes: Notes) -> Tree:
    """Return a copy of a nested object, empty where there is none; anything else there is told."""
    given = tree.get(key)
    if given is not None and not isinstance(given, dict):
        message = f"{key} = {shown(given)} holds no settings; what the file says elsewhere of it stands instead."
        notes.append(Problem(_OUR_PLACES.get(key, f"parts.{key}"), message, "warning"))
    return dict(given) if isinstance(given, dict) else {}


def rename(tree: Tree, source: str, target: str) -> None:
    """Give a value of a tree its newer name, unless that is there already."""
    if source in tree and target not in tree:
        tree[target] = tree.pop(source)
