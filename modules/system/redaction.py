"""Removes secrets from everything that is printed or written: events, logs, detail files. The only place that does.

Code that reads a secret registers it here first (`keep_secret`). `LogFile` is the log on disk. It may fail: a full disk
or a read-only one costs lines of the log and nothing else.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, quote_plus

MASK = "[secret]"
_LINE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
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


def redact(text: str) -> str:
    """Return a text with "[secret]" in place of every known secret."""
    return text if _pattern is None else _pattern.sub(MASK, text)


class RedactingFormatter(logging.Formatter):
    """A formatter whose lines, tracebacks included, contain no known secret."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        return redact(super().format(record))


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


# Tokens and passwords by their form, for secrets that were never stored in Darkroom: masked in what leaves the machine.
#
# A form that could be anything, such as 40 hexadecimal digits, counts as a token only after the name of its service or
# of a secret. The patterns are texts, which are compiled when something leaves the machine, and not at every start.
_NAMES = (
    r"(?:\w*(?:api|access|secret|account|private|signing|encryption)[_-]?key(?:[_-]id)?|\w*(?:token|secret|passwd|"
    r"password|passphrase|pwd|credentials?|authorization|cookie|session[_-]?id)|(?:x-amz-)?(?:signature|credential)|sig|"
    r"key-pair-id|policy)"
)
_FORMS = (
    # services that mark their tokens
    r"\b(?:hf|api_org|gh[opsur]|github_pat|glpat|sk|pk|rk|gsk|r8|rpa|npm|nvapi|tskey|dop_v1|shpat|xai|wandb(?:_v\d+)?)"
    r"[_-][A-Za-z0-9_-]{16,}",
    r"\bxox[a-z]-[A-Za-z0-9-]{10,}",
    r"\bAIza[\w-]{30,}",
    r"\bpypi-[\w-]{16,}",
    r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,}\b",
    r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*",  # JSON web tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
)
_BARE = "(?s)" + "|".join(_FORMS)
_IN_ADDRESS = r"(?<=://)[^/\s\"'@]*:[^/\s\"']*@|(?<=://)[^/\s:@\"']{16,}@"
_SCHEME = r"(?i)\b((?:bearer|basic|digest|negotiate)\s+)[A-Za-z0-9._~+/=-]{6,}"
_VALUE = r"(?!\[secret\])[^\s\\\"'&,;}\])]{6,}"
_AFTER_A_NAME = rf"(?i)(?<![\w-])({_NAMES}[\\\"']*\s*[=:]\s*[\\\"']*)({_VALUE})"
_OF_A_SERVICE = r"(?i)((?:wandb|civitai)[^\n]{0,120}?)\b[0-9a-f]{32,40}\b"
_NETRC = r"(?i)(\bmachine\s+\S+\s+login\s+)\S+(\s+password\s+)\S+"


def without_tokens(text: str) -> str:
    """Return a text with "[secret]" in place of everything that has the form of a token or a password."""
    text = re.sub(_NETRC, rf"\1{MASK}\2{MASK}", text)
    text = re.sub(_BARE, MASK, text)
    text = re.sub(_IN_ADDRESS, f"{MASK}@", text)
    text = re.sub(_SCHEME, rf"\1{MASK}", text)
    text = re.sub(_OF_A_SERVICE, rf"\1{MASK}", text)
    return re.sub(_AFTER_A_NAME, _mask_value, text)


def _mask_value(match: re.Match[str]) -> str:
    value = match[2]
    is_scheme = value.lower() in ("bearer", "basic", "digest", "negotiate")
    return match[0] if is_scheme or not re.search(r"[^\W_]", value) else f"{match[1]}{MASK}"


class LogFile(logging.FileHandler):
    """Appends the log to a file, without secrets. The file is opened with the first line; no failure is printed."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace", delay=True)
        self.setFormatter(RedactingFormatter(_LINE_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or nothing where that fails: logging prints a traceback for each line otherwise."""
        with suppress(OSError):  # of opening the file
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Leave out the line if the file cannot be written; show mistakes in the call, as logging does."""
        try:
            raise
        except OSError:
            return
        except Exception:  # noqa: BLE001 - logging's own way of showing it
            super().handleError(record)

    def close(self) -> None:
        """Close the file; what is still unwritten is lost if that fails."""
        with suppress(OSError):
            super().close()
