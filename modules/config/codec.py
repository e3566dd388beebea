"""Configs to and from JSON files. Reading never raises on content: it returns a config and a list of problems.

Files that are older, written by OneTrainer, incomplete or partly invalid still load: the migrations bring them up to
date, unknown keys are kept in `unknown`, and an invalid value is replaced by its default. Each of these is a `Problem`.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from modules.config.fitting import default_named, sift, validate
from modules.config.json_errors import advice_for, describe_error
from modules.config.list_files import LISTS, ListKind, list_file, loses_entries, read_list, reason_to_confirm
from modules.config.migrations.chain import NEWEST_DARKROOM, is_onetrainer, migrate
from modules.config.migrations.tree_moves import put
from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.settings.field import records_of
from modules.system.atomic import atomic_file, write_text
from modules.system.problem import Problem, quote, shorten
from modules.system.regular_files import MAX_JSON_BYTES, read_json_object, read_regular
from modules.system.secret_keys import without_secrets

_MAX_DEPTH = 100
_MAX_DEPTH_KEPT = 110  # unknown settings are stored a few levels deeper than they were, and have to load again
_KEPT = ("unknown", "remembered")
_SCHEMA = "$schema"
_NOT_SETTINGS = (*_KEPT, _SCHEMA, "darkroom_version")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A config that was read, the problems found while reading it, and whether the file had to be migrated."""

    config: Config
    problems: list[Problem] = field(default_factory=list)
    was_migrated: bool = False


def load_file(path: Path, *, over: Config | None = None) -> LoadedConfig:
    """Read a config file, and the files that it names for its concepts and samples.

    Settings missing from the file come from `over`, or else from the defaults. Content never raises; a file that cannot
    be read gives the defaults and an error.
    """
    try:
        text = read_regular(path, MAX_JSON_BYTES).decode("utf-8-sig")
    except OSError as error:
        return LoadedConfig(Config(), [Problem("", f"{path} cannot be read: {error.strerror or error}.", "error")])
    except UnicodeDecodeError:
        return LoadedConfig(Config(), [Problem("", f"{path} is not a JSON file: it is not valid UTF-8.", "error")])
    except ValueError as error:  # an impossible file name
        return LoadedConfig(Config(), [Problem("", f"{quote(str(path))} cannot be read: {error}.", "error")])
    return load_text(text, name=str(path), folder=path.parent, over=over)


def load_text(text: str, *, name: str, folder: Path, over: Config | None = None) -> LoadedConfig:
    """Read a config from JSON text, like `load_file`; messages name the text `name`; files are in `folder`."""
    duplicates: list[str] = []
    try:
        raw = json.loads(
            text,
            parse_int=_whole_number,
            object_pairs_hook=lambda pairs: _object(pairs, duplicates),
        )
    except RecursionError:
        return LoadedConfig(
            Config(), [Problem("", f"{name} does not contain a config: it is nested too deeply.", "error")]
        )
    except json.JSONDecodeError as error:
        message = f"{name} is not a JSON file: {describe_error(text, error)}."
        return LoadedConfig(Config(), [Problem("", message, "error", advice_for(text, error))])
    loaded = decode(raw, over=over, name=name)
    if duplicates:
        names = ", ".join(quote(name) for name in dict.fromkeys(duplicates))
        note = Problem("", f"These keys occur twice in one object; the last one counts: {names}.", "warning")
        loaded = replace(loaded, problems=[note, *loaded.problems])
    for kind in LISTS if isinstance(raw, dict) else ():
        loaded = _with_list(loaded, kind, raw, folder)
    return loaded


def as_text(config: Config) -> str:
    """Return a config as one complete JSON text: with its concepts and samples, and without secrets."""
    return _json_text(encode(pack_lists(config)))


@dataclass(frozen=True, slots=True)
class UnconfirmedList:
    """A list file that saving a config would write, and why the user has to confirm it first."""

    kind: str
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"The settings keep the {self.kind} in {os.path.realpath(self.path)}, which {self.reason}."


class UnconfirmedListError(OSError):
    """A config was not saved: it would write a list file that the user has not confirmed."""


def lists_to_confirm(config: Config, path: Path) -> tuple[UnconfirmedList, ...]:
    """Return the list files that saving a config at `path` would write, and that the user has to confirm first."""
    folder = path.parent.absolute()
    places = ((kind, folder / str(get_path(config, kind.name_path)).strip()) for kind in LISTS)
    named = ((kind, place) for kind, place in places if place != folder and "\0" not in str(place))
    candidates = ((kind.name, place, reason_to_confirm(kind, place, folder)) for kind, place in named)
    return tuple(UnconfirmedList(*entry) for entry in candidates if entry[2])


def save_file(
    config: Config, path: Path, *, confirmed: Collection[Path] = (), follows_link: bool = True
) -> Path | None:
    """Write a config atomically and return the path of the backup copy, or None if none was needed.

    A file that `path` links to is replaced, and the link stays.

    A file of another program or version is copied to `.bak` before it is replaced. Lists in separate files are written
    first, in the same way; a list file that would become empty is copied, too. `confirmed` are list files that the user
    agreed to write although they are outside of the config's folder, or of another program. Raises OSError if a file
    cannot be written or its name is not possible, UnconfirmedListError for a list file that was not confirmed; nothing
    is written then.
    """
    tree = encode(config)
    apart: dict[Path, tuple[ListKind, list[Any]]] = {}
    for kind in LISTS:
        if name := str(get_path(config, kind.name_path)).strip():
            place = path.parent.absolute() / name
            if "\0" in name or place in (path.absolute(), *apart):
                raise OSError(f"{quote(name)} cannot be used as the file for the {kind.name}.")
            folder, _, key = kind.list_path.rpartition(".")
            apart[place] = kind, (tree[folder] if folder else tree).pop(key)
    if unconfirmed := [
        unconfirmed_list
        for unconfirmed_list in lists_to_confirm(config, path)
        if unconfirmed_list.path not in confirmed
    ]:
        raise UnconfirmedListError(str(unconfirmed[0]))
    for place, (kind, entries) in apart.items():
        if loses_entries(kind, place, entries):
            _keep_original(place)
        _write_json(place, list_file(kind, entries), follows_link=False)
    kept = _keep_original(path) if path.is_file() and not _is_ours(path) else None
    _write_json(path, tree, follows_link=follows_link)
    return kept


def export_file(config: Config, path: Path) -> Path | None:
    """Write a config with its concepts and samples inside, even if they are in separate files: one complete file.

    A file that it replaces is copied first, as in `save_file`; returns the path of that copy, or None. A link is
    replaced: in the folder of a run, which another person may have made, it could lead anywhere.
    """
    return save_file(pack_lists(config), path, follows_link=False)


def pack_lists(config: Config) -> Config:
    """Return the config with its concepts and samples stored inside it instead of in separate files."""
    for kind in LISTS:
        config = _set(config, kind.name_path, "")
    return config


def _write_json(path: Path, tree: dict[str, Any], *, follows_link: bool) -> None:
    write_text(path, _json_text(tree), follows_link=follows_link)


def _json_text(tree: dict[str, Any]) -> str:
    text = json.dumps(tree, indent=2, ensure_ascii=False)
    # JSON allows half a surrogate pair, which UTF-8 cannot encode: written as an escape it survives the round trip.
    text = re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
    return text + "\n"


def _with_list(loaded: LoadedConfig, kind: ListKind, raw: dict[str, Any], folder: Path) -> LoadedConfig:
    """Read a list from the file that the config names. A list inside the config takes precedence over it."""
    config, is_theirs = loaded.config, is_onetrainer(raw)
    name = str(get_path(config, kind.name_path)).strip()
    if not name:
        return loaded
    if kind.is_inside(raw, is_onetrainer=is_theirs):
        return replace(loaded, config=_set(config, kind.name_path, ""))
    notes: list[Problem] = []
    entries_file = read_list(kind, name, folder, notes, family=config.model.family.name, is_onetrainer=is_theirs)
    if entries_file is None:
        return replace(loaded, problems=[*loaded.problems, *notes])
    part: dict[str, Any] = {"darkroom_version": entries_file.version}
    put(part, kind.list_path, entries_file.entries)
    fitted = decode(part)
    unknown = {**config.unknown, **fitted.config.unknown}
    if entries_file.leftovers:
        theirs = unknown.get("onetrainer")
        names = ", ".join(sorted({key for item in entries_file.leftovers for key in item}))
        message = f"These settings have no effect here and are kept unchanged: {shorten(names, max_chars=200)}."
        notes.append(Problem(kind.list_path, message, "info"))
        kept = {kind.name: _storable(entries_file.leftovers)}
        unknown["onetrainer"] = {**(theirs if isinstance(theirs, dict) else {}), **kept}
    config = _set(config, kind.list_path, get_path(fitted.config, kind.list_path))
    if entries_file.path != folder.absolute() / name:
        config = _set(config, kind.name_path, str(entries_file.path))
    config = config.model_copy(update={"unknown": unknown})
    return replace(loaded, config=config, problems=[*loaded.problems, *notes, *fitted.problems])


def _set(config: Config, path: str, value: object) -> Config:
    """Return the config with another valid value for one of its fields or a field of one of its sections."""
    folder, _, key = path.rpartition(".")
    if not folder:
        return config.model_copy(update={key: value})
    return config.model_copy(update={folder: get_path(config, folder).model_copy(update={key: value})})


def encode(config: Config, sections: Collection[str] | None = None) -> dict[str, Any]:
    """Return the config as JSON-safe data with every field, or with the fields of some sections."""
    include = None if sections is None else set(sections)
    tree = {name: _storable(value) for name, value in config.model_dump(include=include).items()}
    schema = tree["unknown"].pop(_SCHEMA, None) if "unknown" in tree else None
    beginning = {} if schema is None else {_SCHEMA: schema}
    return beginning | {name: value for name, value in tree.items() if value or name not in ("unknown", "remembered")}


def decode(raw: object, *, over: Config | None = None, name: str = "The file") -> LoadedConfig:
    """Return the config that JSON data describe. Total: any data give a valid config.

    Settings missing from the data come from `over`, or else from the defaults. Messages name the data `name`.
    """
    if not isinstance(raw, dict):
        return LoadedConfig(Config(), [_not_a_config(raw, name)])
    kept = {key: raw[key] for key in _KEPT if key in raw}
    rest = {key: value for key, value in raw.items() if key not in _KEPT}
    if _is_deeper(rest, _MAX_DEPTH) or _is_deeper(kept, _MAX_DEPTH_KEPT):
        message = f"{name} does not contain a config: it is nested too deeply."
        return LoadedConfig(Config(), [Problem("", message, "error")])
    raw, left_out = without_secrets(raw)
    tree, problems, was_migrated = migrate(raw, is_whole=over is None)
    problems = [*left_out, *problems]
    if raw and not is_onetrainer(raw) and "darkroom_version" not in raw and not _has_setting(tree):
        return LoadedConfig(Config(), [_without_settings(raw, name)])
    schema = tree.pop(_SCHEMA, None)  # for editors; kept in place, not a setting
    if over is not None:
        tree = _merge(encode(over), tree)
    unknown = tree.pop("unknown", {})
    if not isinstance(unknown, dict):
        problems.append(Problem("unknown", f"{quote(unknown)} is not an object with unknown settings; it is left out."))
        unknown = {}
    if schema is not None:
        unknown[_SCHEMA] = schema
    known = sift(tree, Config, "", unknown, problems)
    known["unknown"] = _storable(unknown)
    if "remembered" in known:
        known["remembered"] = _storable(known["remembered"])
    config = validate(known, problems)
    return LoadedConfig(config, [default_named(p, config) for p in problems], was_migrated)


def _not_a_config(raw: object, name: str) -> Problem:
    """Return the error for JSON data that are no object; lists of concepts and samples have files of their own."""
    kinds = {"path": ("concepts", "Concepts in a file"), "prompt": ("samples", "Samples in a file")}
    first = raw[0] if isinstance(raw, list) and raw and isinstance(raw[0], dict) else {}
    kind, field = next((kinds[key] for key in kinds if key in first), ("", ""))
    if not kind:
        return Problem("", f"{name} does not contain a config: it is not a JSON object.")
    message = f"{name} is a list of {kind}, not a config."
    return Problem("", message, advice=f"Load the config that uses it, or choose it as {field}.")


def _has_setting(tree: Mapping[str, Any]) -> bool:
    """Return whether one of our trees contains any setting, list or choice, valid or not."""
    known = sift({name: value for name, value in tree.items() if name not in _NOT_SETTINGS}, Config, "", {}, [])
    choices = {record.path for record in records_of(Config) if record.kind == "section"}
    return any((isinstance(value, dict | list) and value) or name in choices for name, value in known.items())


def _without_settings(raw: Mapping[str, Any], name: str) -> Problem:
    names = shorten(", ".join(map(quote, raw)), max_chars=100)
    message = f"{name} does not contain a config: nothing in it is a setting. It contains {names}."
    return Problem("", message, "error", "Choose a config of Darkroom, OneTrainer or kohya.")


def _merge(below: dict[str, Any], above: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return `below` updated by `above`: objects are merged, lists, values and other variants replaced."""
    if path in _variant_paths() and "name" in above and above["name"] != below.get("name"):
        return above
    joined = {**below, **above}
    for key, value in above.items():
        under, place = below.get(key), f"{path}.{key}" if path else key
        joined[key] = _merge(under, value, place) if isinstance(under, dict) and isinstance(value, dict) else value
    keys = {key: key for key in (*below, *above)}  # the order of `below`, the keys of `above` (`MovedKey`)
    return {key: joined[key] for key in keys.values()}


@cache
def _variant_paths() -> frozenset[str]:
    """Return the paths at which `name` chooses a variant; elsewhere it is an ordinary field."""
    return frozenset(record.path for record in records_of(Config) if record.kind == "section")


def _object(pairs: list[tuple[str, Any]], duplicates: list[str]) -> dict[str, Any]:
    """Return a JSON object and add keys that occur more than once, which JSON allows, to `duplicates`."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        duplicates += [name for name in result if names.count(name) > 1]
    return result


def _storable(value: Any) -> Any:
    """Return a value as JSON can store it, with plain keys; NaN and infinity become the text that OneTrainer writes.

    Pydantic's own JSON mode refuses half surrogate pairs.
    """
    match value:
        case Mapping():
            return {str(key): _storable(v) for key, v in value.items()}
        case list() | tuple():
            return [_storable(v) for v in value]
        case float() if not math.isfinite(value):
            return str(value)
        case None | str() | int() | float():
            return value
        case _:  # the dates of TOML
            return str(value)


def _whole_number(digits: str) -> int | float:
    """Return the number; with thousands of digits it becomes infinity, as Python would refuse the whole file."""
    return int(digits) if len(digits) < 4000 else float(digits)


def _is_deeper(raw: object, num_levels: int) -> bool:
    level = [raw]
    for _ in range(num_levels):
        level = [c for n in level for c in (n.values() if isinstance(n, dict) else n if isinstance(n, list) else ())]
    return bool(level)


def _keep_original(path: Path) -> Path | None:
    """Copy a file to the first free `.bak` name, unless one of them has the same content; return that file."""
    content = path.read_bytes()
    for number in ("", *range(2, 1000)):
        kept = path.with_name(f"{path.name}.bak{number}")
        if not kept.exists():
            with atomic_file(kept) as temporary:
                shutil.copy2(path, temporary)
            return kept
        if kept.read_bytes() == content:
            return kept
    return None


def _is_ours(path: Path) -> bool:
    return (read_json_object(path) or {}).get("darkroom_version") == NEWEST_DARKROOM
