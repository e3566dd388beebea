"""Events as lines of JSON, in `events.jsonl` and over a pipe, and without the secrets that they may quote."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from modules.system.redaction import redact
from trainer.events import Event
from trainer.job_events import JobEvent
from trainer.rollout_events import SampledImage

EVENT_TYPES: Mapping[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
_JOB_EVENT_TYPES: Mapping[str, type[JobEvent]] = {kind.__name__: kind for kind in get_args(JobEvent)}
_PLACES = frozenset({"run_dir", "path", "model_path", "backup_path", "details_path"})
_Record = TypeVar("_Record", bound=Event | SampledImage)
_NAMES = frozenset(
    {"phase", "outcome", "family", "method", "trains", "format", "what", "device", "missing_model", "remedy"}
)
_ACTED_ON = _PLACES | _NAMES
_MAX_DIGITS = 300  # of a whole number: a longer one cannot be divided into GB, and no run writes one
_DECODER = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else math.inf)


def to_line(event: Event | JobEvent, **extra: Any) -> str:
    """Return the event as one line of JSON, its kind under "event"; `extra` keys (a time stamp) are added.

    A number that is not finite, such as a NaN loss, is written as a string ("nan", "inf"), because JSON cannot hold it.
    """
    return json.dumps({"event": type(event).__name__, **_json_safe(extra), **_json_safe(event)}, allow_nan=False)


def from_line(line: str) -> Event | None:
    """Return the event of a run in a line, or None for any other line (from a newer version, or half written)."""
    event: Event | None = _event(line, EVENT_TYPES)
    return event


def job_event(line: str) -> JobEvent | None:
    """Return the event of a job in a line, or None for any other line."""
    event: JobEvent | None = _event(line, _JOB_EVENT_TYPES)
    return event


def _event(line: str, types: Mapping[str, type]) -> Any:
    try:
        data = _DECODER.decode(line)
    except (ValueError, RecursionError):
        return None
    name = data.pop("event", None) if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in types:
        return None
    try:
        return _reader(types[name]).validate_python(data)
    except ValidationError:
        return None


@cache
def _reader(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def without_secrets(record: _Record) -> _Record:
    """Return an event with known secrets removed from its texts; paths and names that programs act on stay."""
    values = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in _ACTED_ON}
    safe = {name: _safe(value) for name, value in values.items()}
    changed: dict[str, Any] = {name: value for name, value in safe.items() if value != values[name]}
    return replace(record, **changed) if changed else record


def _safe(value: Any) -> Any:
    """Return a field's text without secrets; so are the texts of records in a tuple."""
    match value:
        case str():
            return redact(value)
        case (SampledImage(), *_):
            return tuple(map(without_secrets, value))
        case _:
            return value


def _json_safe(value: Any) -> Any:
    # There is a line for each step, so the frequent kinds come first.
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case str() | int() | None:
            return value
        case dict():
            return {key: _json_safe(v) for key, v in value.items()}
        case list() | tuple():
            return [_json_safe(v) for v in value]
        case Mapping():
            return {key: _json_safe(v) for key, v in value.items()}
        case _ if is_dataclass(value):
            return {f.name: _json_safe(getattr(value, f.name)) for f in fields(value)}
        case _:
            return value
