"""The files beside an OneTrainer config: concepts and samples are JSON lists of their own, which the config names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modules.config.problem import Problem, shown
from modules.system.paths import PROGRAM_ROOT

_LISTS = (("concepts", "concept_file_name"), ("samples", "sample_definition_file_name"))
_PARENTS = 3


def with_lists(tree: dict[str, Any], folder: Path, notes: list[Problem]) -> dict[str, Any]:
    """Return an OneTrainer tree with the lists that it only names; `folder` is where the config itself lies.

    A list that is in the tree already stays. A file that is missing, or holds no list, is told in `notes`.
    """
    result = dict(tree)
    for key, name_key in _LISTS:
        name = result.get(name_key)
        if result.get(key) is None and isinstance(name, str) and name.strip():
            found = _read_list(name.strip(), folder, notes, key)
            if found is not None:
                result[key] = found
    return result


def _read_list(name: str, folder: Path, notes: list[Problem], key: str) -> list[Any] | None:
    """Return the list of a file, looked for where OneTrainer's relative names may count from."""
    folder = folder.absolute()
    places = list(dict.fromkeys([folder, *folder.parents[:_PARENTS], PROGRAM_ROOT]))
    candidates = list(dict.fromkeys(p / name for p in places))
    path = next((c for c in candidates if _is_file(c)), None)
    where = "sampling.prompts" if key == "samples" else key
    if path is None:
        looked_in = ", ".join(str(c.parent) for c in candidates)
        notes.append(
            Problem(
                where,
                f"The file {shown(name)} with the {key} was not found; it was looked for in {looked_in}.",
                "warning",
                "Copy it there and load the config again, or fill them in by hand.",
            )
        )
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        notes.append(Problem(where, f"The file {path} with the {key} cannot be read: {error}.", "warning"))
        return None
    if not isinstance(content, list):
        notes.append(Problem(where, f"The file {path} with the {key} does not hold a list.", "warning"))
        return None
    notes.append(Problem(where, f"The {key} were read from {path}.", "info"))
    return content


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name no file can have
        return False
