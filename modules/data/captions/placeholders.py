"""The placeholders of embeddings in captions and prompts.

A placeholder is found as a word of its own and in any case: CLIP's tokenizer does not distinguish case either, and
captions may be randomly capitalized.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache


def contains_any(text: str, placeholders: Collection[str]) -> bool:
    """Return whether a text contains one of the placeholders."""
    return bool(placeholders) and _pattern(tuple(placeholders)).search(text) is not None


def split_at_placeholders(text: str, placeholders: Collection[str]) -> Iterator[tuple[str, str | None]]:
    """Yield a text's pieces in order: (its text, None) between placeholders, and (as written, placeholder) for one."""
    if not placeholders:
        yield text, None
        return
    by_key = {p.lower(): p for p in placeholders}
    place = 0
    for match in _pattern(tuple(placeholders)).finditer(text):
        if match.start() > place:
            yield text[place : match.start()], None
        yield match[0], by_key[match[0].lower()]
        place = match.end()
    if place < len(text):
        yield text[place:], None


@lru_cache(maxsize=32)
def _pattern(placeholders: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for any of the placeholders; where two begin at the same place, the longer one."""
    ordered = sorted(placeholders, key=len, reverse=True)
    return re.compile("|".join(map(_as_word, ordered)), re.IGNORECASE)


def _as_word(placeholder: str) -> str:
    """Return the pattern of one placeholder: letters next to it would make it part of another word."""
    before = r"(?<!\w)" if re.match(r"\w", placeholder) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", placeholder) else ""
    return f"{before}{re.escape(placeholder)}{after}"
