"""Concepts and samples in separate files, which several configs can share: find, read and write them.

Our list files have the version of the config they belong to: {"darkroom_concepts": 2, "concepts": [...]}. OneTrainer's
are bare lists. Both are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.config.json_errors import describe_error
from modules.system.file_errors import plain_reason
from modules.system.paths import PROGRAM_ROOT
from modules.system.problem import Problem, quote
from modules.system.regular_files import MAX_JSON_BYTES, is_file, read_json_object, read_regular
from modules.system.secret_keys import without_secrets

LIST_VERSION = 2
_NUM_PARENTS = 3
Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ListKind:
    """A list that can be in a separate file: its name, and the config paths of the list and of its file name."""

    name: str
    list_path: str
    name_path: str

    @property
    def version_key(self) -> str:
        """The key that identifies one of our list files."""
        return f"darkroom_{self.name}"

    def is_inside(self, raw: Mapping[str, Any], *, is_onetrainer: bool) -> bool:
        """Return whether a config contains the list itself; then the name of the list's file is ignored."""
        folder, _, key = self.list_path.rpartition(".")
        if is_onetrainer:
            return raw.get(self.name) is not None
        holder = raw.get(folder) if folder else raw
        return isinstance(holder, dict) and holder.get(key) is not None


LISTS = (
    ListKind("concepts", "concepts", "concepts_file"),
    ListKind("samples", "sampling.prompts", "sampling.prompts_file"),
)


@dataclass(frozen=True, slots=True)
class LoadedList:
    """A list that was read: its entries, their version, its file, and the unused settings of OneTrainer's entries."""

    entries: list[Any]
    path: Path
    version: int
    leftovers: list[Tree] = field(default_factory=list)


def read_list(
    kind: ListKind, name: str, folder: Path, notes: list[Problem], *, family: str, is_onetrainer: bool
) -> LoadedList | None:
    """Return the list in a file that a config in `folder` names; None, with a note, if it is missing or not a list.

    The name is relative to the config's folder. OneTrainer's names are relative to its own folder, further up.
    """
    path = _find(kind, name, folder, notes, is_onetrainer=is_onetrainer)
    if path is None:
        return None
    try:
        content = _content_of(path)
    except (OSError, ValueError, RecursionError) as error:
        message = f"The file {path} with the {kind.name} cannot be read: {_reason(path, error)}."
        notes.append(Problem(kind.list_path, message, "warning"))
        return None
    whole, left_out = without_secrets({kind.name: content})
    notes += left_out
    content = whole[kind.name]
    is_ours = isinstance(content, dict)
    entries = (
        _read_ours(kind, path, content, notes) if is_ours else _read_onetrainers(kind, path, content, family, notes)
    )
    if entries is None:
        notes.append(Problem(kind.list_path, f"The file {path} does not contain a list of {kind.name}.", "warning"))
    elif is_onetrainer:
        notes.append(Problem(kind.list_path, f"The {kind.name} were read from {path}.", "info"))
    return entries


def list_file(kind: ListKind, entries: list[Any]) -> Tree:
    """Return the content of one of our list files."""
    return {kind.version_key: LIST_VERSION, kind.name: entries}


def loses_entries(kind: ListKind, path: Path, entries: list[Any]) -> bool:
    """Return whether writing a list would lose content: a file of another kind, or a list that becomes empty."""
    content = read_json_object(path)
    if content is None:
        return path.exists()
    if content.get(kind.version_key) != LIST_VERSION:
        return True
    return not entries and bool(content.get(kind.name))


def reason_to_confirm(kind: ListKind, path: Path, folder: Path) -> str:
    """Return why a list may be written to a path only if the user confirmed that path; empty if it may be written.

    The name comes with a config, which may be from a stranger: outside of the config's `folder` it could be any file,
    and a file in it may be something else.
    """
    if not os.path.realpath(path).startswith(os.path.realpath(folder).rstrip(os.sep) + os.sep):
        return "is not in the config's folder"
    try:
        content = _content_of(path)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, RecursionError):
        content = None
    is_ours = isinstance(content, dict) and content.get(kind.version_key) is not None
    return "" if is_ours else "exists already and was not written by Darkroom"


def _content_of(path: Path) -> Any:
    """Return the content of a JSON file. Raises OSError, ValueError or RecursionError."""
    return json.loads(read_regular(path, MAX_JSON_BYTES).decode("utf-8-sig"))


def _reason(path: Path, error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"it is not a JSON file: {describe_error(error.doc, error)}"
        case UnicodeDecodeError():
            return "it is not valid UTF-8"
        case RecursionError():
            return "it is nested too deeply"
        case _:
            return plain_reason(error)


def _read_ours(kind: ListKind, path: Path, content: Tree, notes: list[Problem]) -> LoadedList | None:
    version, entries = content.get(kind.version_key), content.get(kind.name)
    if version is None or not isinstance(entries, list):
        return None
    if version not in range(1, LIST_VERSION + 1):
        message = f"{path} is from another version of Darkroom ({quote(version)}); only known settings are loaded."
        notes.append(Problem(kind.list_path, message, "warning"))
    is_older = isinstance(version, int) and 0 < version < LIST_VERSION
    return LoadedList(entries, path, version if is_older else LIST_VERSION)


def _read_onetrainers(
    kind: ListKind, path: Path, content: object, family: str, notes: list[Problem]
) -> LoadedList | None:
    if not isinstance(content, list):
        return None
    from modules.config.migrations.onetrainer_11.lists import concepts_from, samples_from

    is_concepts = kind.name == "concepts"
    entries, leftovers = concepts_from(content, notes) if is_concepts else samples_from(content, notes, family)
    return LoadedList(entries, path, 1, leftovers)  # OneTrainer's entries are migrated through our version 1


def _find(kind: ListKind, name: str, folder: Path, notes: list[Problem], *, is_onetrainer: bool) -> Path | None:
    folder = folder.absolute()
    places = [folder, *folder.parents[:_NUM_PARENTS], PROGRAM_ROOT] if is_onetrainer else [folder]
    candidates = list(dict.fromkeys(p / name for p in places))
    path = next((c for c in candidates if is_file(c)), None)
    if path is None:
        searched = f"{folder}, the folders above it or {PROGRAM_ROOT}" if is_onetrainer else str(folder)
        notes.append(
            Problem(
                kind.list_path,
                f"The file {quote(name)} with the {kind.name} was not found in {searched}.",
                "warning",
                "Copy it next to the config and load that again, or enter them by hand.",
            )
        )
    return path
