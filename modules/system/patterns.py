"""Regular expressions that files can hold: the pattern of a stranger must neither hang the program nor exhaust it.

They are matched by the package regex, which can stop: Python's `re` has no time limit, and takes forever for
some patterns on some texts (catastrophic backtracking). A pattern must be valid for `re`, and means what it means
there; only `\\w`, which also matches combining marks here, can differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from modules.system.errors import DarkroomError

_MAX_CHARS = 8_000  # ranks by block of other trainers become long ones
_MAX_STATES = 20_000  # a{100} has 100 of them, (a{100}){100} 10,000; they take memory before anything is matched
_SECONDS = (0.25, 1.0)  # of the process's CPU time; the second try is for a thread that had to wait for others
_TOKEN = re.compile(
    r"\\N\{[^}]*\}|\\."
    r"|(?P<set>\[\^?(?:\]|\\.|[^\]\\])(?:\\.|[^\]\\])*\])"
    r"|(?P<count>\{(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\})"
    r"|.",
    re.DOTALL,
)
_SPECIAL = frozenset("\\.^$*+?{}[]|()")
_NAMES = (
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
    "encoder.layers.11.self_attn.out_proj",
    "a" * 60,
    "1boy, " * 10,
)


class PatternError(DarkroomError):
    """A regular expression that cannot be used; `reason` is a clause: "it is nested too deeply"."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(
            f"The regular expression {_short(pattern)} cannot be used: {reason}.",
            advice="Correct it, or switch off regular expressions.",
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression, ready to be matched within a limit of time."""

    text: str
    _compiled: Any

    def is_in(self, text: str) -> bool:
        """Return whether it matches anywhere in a text. Raises PatternError where that takes too long."""
        return self._match(self._compiled.search, text)

    def matches(self, text: str) -> bool:
        """Return whether it matches a whole text. Raises PatternError where that takes too long."""
        return self._match(self._compiled.fullmatch, text)

    def _match(self, match: Any, text: str) -> bool:
        for seconds in _SECONDS:
            try:
                return match(text, timeout=seconds) is not None
            except TimeoutError:
                continue
        raise PatternError(
            self.text, f"it takes too long on {_short(text)}; a repetition inside a repetition can do so"
        )


@lru_cache(maxsize=20_000)
def compiled_pattern(text: str) -> Pattern:
    """Return a regular expression, ready to be matched. Raises PatternError for one that is not valid, or too large."""
    import regex  # here, since the window rarely needs it

    if len(text) > _MAX_CHARS:
        raise PatternError(text, f"it has more than {_MAX_CHARS:,} characters")
    try:
        re.compile(text)
        translated = _translate(text)
        return Pattern(text, regex.compile(translated))
    except RecursionError as error:
        raise PatternError(text, "it is nested too deeply") from error
    except (re.error, regex.error, OverflowError) as error:
        raise PatternError(text, str(error)) from error


def fault_of_pattern(text: str) -> str:
    """Return the error in a regular expression, as a clause; empty for one that can be used.

    It is also matched with a few names of layers and tags, so that most expressions that would take forever are
    detected.
    """
    if _SPECIAL.isdisjoint(text) and len(text) <= _MAX_CHARS:
        return ""
    try:
        pattern = compiled_pattern(text)
        for name in _NAMES:
            pattern.is_in(name)
    except PatternError as error:
        return error.reason
    return ""


def _translate(text: str) -> str:
    """Return a pattern of `re` in the syntax of regex, where some braces and brackets mean more.

    Raises PatternError where its repetitions multiply to too many states.
    """
    pieces: list[str] = []
    groups = [[0, 0]]  # for each open group: its states, and the states of its last item
    for token in _TOKEN.finditer(text):
        piece = token[0]
        if piece == "(":
            groups.append([0, 0])
        elif piece == ")" and len(groups) > 1:
            size, _ = groups.pop()
            _add(groups[-1], size)
        elif token["count"] is not None and (token["least"] or token["comma"]):
            least = token["least"] or "0"
            if not _repeat(groups[-1], int(token["most"] or least)):
                raise PatternError(text, f"its repetitions multiply to more than {_MAX_STATES:,}")
            piece = f"{{{least}{token['comma']}{token['most']}}}"
        else:
            _add(groups[-1], 1)
            piece = piece[0] + piece[1:].replace("[", r"\[") if token["set"] else r"\{" if piece == "{" else piece
        pieces.append(piece)
    return "".join(pieces)


def _add(group: list[int], size: int) -> None:
    group[0] += size
    group[1] = size


def _repeat(group: list[int], count: int) -> bool:
    """Repeat the last item of a group; return whether its states are still few enough."""
    size = group[1] * max(1, count)
    group[0] += size - group[1]
    group[1] = size
    return group[0] <= _MAX_STATES


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
