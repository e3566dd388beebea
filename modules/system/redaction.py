"""Removes secrets from everything that is printed or written: events, logs, detail files. The only place that does.

Code that reads a secret registers it here first (`keep_secret`).
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

MASK = "[secret]"
_MIN_CHARS = 8  # a shorter one may be an ordinary word; redacting it would garble the text

_lock = threading.Lock()
_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


def keep_secret(*values: str) -> None:
    """Redact values of at least eight characters in all texts from now on, until the process ends."""
    global _pattern
    with _lock:
        _known.update(form for value in values for form in _forms(value) if len(form) >= _MIN_CHARS)
        if _known:
            # The longest first: one secret may be a prefix of another.
            _pattern = re.compile("|".join(re.escape(form) for form in sorted(_known, key=len, reverse=True)))


def redacted(text: str) -> str:
    """Return a text with "[secret]" in place of every known secret."""
    return text if _pattern is None else _pattern.sub(MASK, text)


class RedactingFormatter(logging.Formatter):
    """A formatter whose lines, tracebacks included, contain no known secret."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        return redacted(super().format(record))


def _forms(value: str) -> Iterator[str]:
    """Yield the forms in which a text may contain a secret: as it is, and escaped as in Python, JSON and URLs."""
    value = value.strip()
    yield value
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    encodable = value.encode("utf-8", errors="replace")
    yield quote(encodable, safe="")
    yield quote_plus(encodable)
