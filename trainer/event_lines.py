"""Events as lines of JSON, in `events.jsonl` and over a pipe, and without the secrets that they may quote."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from modules.system.redaction import redacted
from trainer.events import Event

EVENT_TYPES: Mapping[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
_PLACES = frozenset({"run_dir", "path", "model_path", "backup_path", "details_path"})
_NAMES = frozenset({"phase", "outcome", "family", "method", "trains", "format", "what", "device"})


def to_line(event: Event, **extra: Any) -> str:
    """Return the event as one line of JSON, its kind under "event"; `extra` keys (a time stamp) are added.

    A number that is not finite, such as a NaN loss, is written as a string ("nan", "inf"), because JSON cannot hold it.
    """
    return json.dumps(_json_safe({"event": type(event).__name__, **extra, **asdict(event)}), allow_nan=False)


def from_line(line: str) -> Event | None:
    """Return the event of a line, or None for any other line (from a newer version, or half written)."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    name = data.pop("event", None) if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in EVENT_TYPES:
        return None
    try:
        return _reader(name).validate_python(data)
    except ValidationError:
        return None


@cache
def _reader(name: str) -> TypeAdapter[Event]:
    return TypeAdapter(EVENT_TYPES[name])


def without_secrets(event: Event) -> Event:
    """Return the event with known secrets removed from its texts; paths and names that programs act on stay."""
    texts = {name: getattr(event, name) for name in event.__slots__ if name not in _PLACES | _NAMES}
    safe_texts = {name: redacted(text) for name, text in texts.items() if isinstance(text, str)}
    changed: dict[str, Any] = {name: text for name, text in safe_texts.items() if text != texts[name]}
    return replace(event, **changed) if changed else event


def _json_safe(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: _json_safe(v) for key, v in value.items()}
        case list() | tuple():
            return [_json_safe(v) for v in value]
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value
