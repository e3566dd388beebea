"""Configs to and from JSON files. Reading never raises on content: it returns a config and what was found.

A file that is older, of OneTrainer, incomplete, or partly nonsense still loads: the migrations bring it up to date,
unknown keys are kept in `unknown`, and a bad value gives way to its default. Each of these is a `Problem`.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from modules.config.every import Every
from modules.config.field import FieldRecord, records_of
from modules.config.list_files import with_lists
from modules.config.migrations.chain import is_onetrainer, migrate
from modules.config.problem import Problem, cut, shown
from modules.config.schema import VERSION, Config
from modules.config.secrets import without_secrets
from modules.system.atomic import atomic_file, write_text

_DEEPEST = 100
_Place = tuple[Any, ...]  # keys of objects and indices of lists


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config as it was read, what was found on the way, and whether the file was of an older kind."""

    config: Config
    problems: list[Problem] = field(default_factory=list)
    was_migrated: bool = False


def load_file(path: Path) -> Loaded:
    """Read a config file, and the files that an OneTrainer config names for its concepts and samples.

    Content never raises; a file that cannot be read gives the defaults and an error.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"), parse_int=_whole_number)
    except (OSError, UnicodeDecodeError) as error:
        return Loaded(Config(), [Problem("", f"{path} cannot be read: {error}.", "error")])
    except (ValueError, RecursionError) as error:
        return Loaded(Config(), [Problem("", f"{path} is not a JSON file: {error}.", "error")])
    notes: list[Problem] = []
    if isinstance(raw, dict) and is_onetrainer(raw):
        raw = with_lists(raw, path.parent, notes)
    loaded = decode(raw)
    return Loaded(loaded.config, [*notes, *loaded.problems], loaded.was_migrated)


def save_file(config: Config, path: Path) -> Path | None:
    """Write a config atomically. A file of another kind or version that it replaces is kept as `.bak`; return where."""
    kept = _keep_original(path) if path.is_file() and not _is_ours(path) else None
    text = json.dumps(encode(config), indent=2, ensure_ascii=False)
    # Half a surrogate pair has no UTF-8 form, and JSON allows it: written as an escape it comes back as it was.
    text = re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
    write_text(path, text + "\n")
    return kept


def encode(config: Config) -> dict[str, Any]:
    """Return the config as JSON-safe data, every field written."""
    tree = {name: _json_safe(value) for name, value in config.model_dump().items()}
    return {name: value for name, value in tree.items() if value or name not in ("unknown", "remembered")}


def decode(raw: object) -> Loaded:
    """Return the config that JSON data describes; total: any data gives a valid config."""
    if not isinstance(raw, dict):
        return Loaded(Config(), [Problem("", "The file does not hold a config: no JSON object.", "error")])
    if _is_too_deep(raw):
        return Loaded(Config(), [Problem("", "The file does not hold a config: it is nested too deeply.", "error")])
    raw, left_out = without_secrets(raw)
    tree, problems, was_migrated = migrate(raw)
    problems = [*left_out, *problems]
    unknown = tree.pop("unknown", {})
    if not isinstance(unknown, dict):
        problems.append(Problem("unknown", f"{shown(unknown)} is no list of unknown settings; it is left out."))
        unknown = {}
    known = _sift(tree, Config, "", unknown, problems)
    known["unknown"] = unknown
    return Loaded(_validated(known, problems), problems, was_migrated)


def _sift(
    raw: Mapping[str, Any],
    section: type[BaseModel],
    prefix: str,
    unknown: dict[str, Any],
    problems: list[Problem],
) -> dict[str, Any]:
    """Return the keys that `section` knows; move the others to `unknown` by their path and report them."""
    records = {r.name: r for r in records_of(section, "")}
    known: dict[str, Any] = {}
    for key, value in raw.items():
        path = f"{prefix}{key}"
        if key not in section.model_fields:
            unknown[path] = value
            problems.append(Problem(path, "This setting is not known here; it is kept in the file.", "info"))
        else:
            known[key] = _sift_value(value, section, key, records.get(key), path, unknown, problems)
    return known


def _sift_value(
    value: Any,
    section: type[BaseModel],
    key: str,
    record: FieldRecord | None,
    path: str,
    unknown: dict[str, Any],
    problems: list[Problem],
) -> Any:
    annotation = section.model_fields[key].annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict):
        return _sift(value, annotation, f"{path}.", unknown, problems)
    if record is None:
        return value
    if record.kind == "section" and isinstance(value, str):
        value = {"name": value}
    if record.kind == "section" and isinstance(value, dict):
        variant = record.variants.get(str(value.get("name", record.default.name)))
        named = {"name": record.default.name, **value}
        return _sift(named, variant, f"{path}.", unknown, problems) if variant else value
    if record.kind == "map" and isinstance(value, dict) and record.item:
        return {
            k: _sift(v, record.item, f"{path}.{k}.", unknown, problems) if isinstance(v, dict) else v
            for k, v in value.items()
        }
    if record.kind == "list" and isinstance(value, list) and record.item:
        return [
            _sift(v, record.item, f"{path}.{i}.", unknown, problems) if isinstance(v, dict) else v
            for i, v in enumerate(value)
        ]
    return value


def _validated(tree: dict[str, Any], problems: list[Problem]) -> Config:
    """Validate; drop what does not fit, so that the defaults stand, until the rest does."""
    while True:
        try:
            return Config.model_validate(tree)
        except ValidationError as error:
            findings = error.errors(include_url=False, include_context=False, include_input=False)
        messages: dict[_Place, str] = {}
        for finding in findings:
            message = cut(finding["msg"].removeprefix("Value error, "), max_chars=200)
            messages.setdefault(_place_of(tree, finding["loc"]), message)
        outermost = [p for p in messages if not any(p[:n] in messages for n in range(1, len(p)))]
        # From the last to the first: what is left out of a list moves what comes after it.
        dropped = [_drop(tree, place, messages[place]) for place in reversed(outermost)]
        problems += reversed(dropped)


def _place_of(tree: dict[str, Any], location: _Place) -> _Place:
    """Return where in the tree a location of pydantic's is: the value that has to go."""
    node: Any = tree[location[0]]
    place = location[:1]
    for step in location[1:]:
        if isinstance(node, dict) and step not in node:
            continue  # pydantic names the variant of a union here; the data does not
        if not isinstance(node, dict) and not (isinstance(node, list) and isinstance(step, int)):
            break
        if isinstance(node, dict) and node.keys() <= Every.model_fields.keys():
            break  # a number and its unit stand or fall together
        node = node[step]
        place = (*place, step)
    return place


def _drop(tree: dict[str, Any], place: _Place, message: str) -> Problem:
    """Remove the value at a place, and say so."""
    holder: Any = tree
    for step in place[:-1]:
        holder = holder[step]
    value = holder.pop(place[-1])
    stands = "it is left out" if isinstance(holder, list) else "the default stands instead"
    path = ".".join(str(step) for step in place)
    return Problem(path, f"{shown(value)} does not fit ({message}); {stands}.", "warning")


def _json_safe(value: Any) -> Any:
    """Return a dumped value as JSON holds it. Pydantic's own JSON mode refuses half surrogate pairs."""
    match value:
        case Mapping():
            return {key: _json_safe(v) for key, v in value.items()}
        case list() | tuple():
            return [_json_safe(v) for v in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _whole_number(digits: str) -> int | float:
    """Return the number; beyond all use it becomes infinity, where Python would refuse the whole file."""
    return int(digits) if len(digits) < 4000 else float(digits)


def _is_too_deep(raw: object) -> bool:
    level = [raw]
    for _ in range(_DEEPEST):
        level = [c for n in level for c in (n.values() if isinstance(n, dict) else n if isinstance(n, list) else ())]
    return bool(level)


def _keep_original(path: Path) -> Path | None:
    """Copy a file to the first `.bak` name that is free, unless one of them holds the same; return that file."""
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
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and raw.get("darkroom_version") == VERSION
