"""Layer filters: which layers of a part of the model a setting selects, by their dotted names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from modules.system.errors import DarkroomError

Preset = Literal["attention_mlp", "attention", "blocks", "all", "custom"]

PRESET_LABELS = {
    "attention_mlp": "Attention blocks",
    "attention": "Attention only",
    "blocks": "All blocks",
    "all": "All layers",
    "custom": "Named below",
}

EXAMPLES = "attn1 (self-attention), attn2 (cross-attention) or ff (feed-forward)"


@dataclass(frozen=True, slots=True)
class LayerFilter:
    """Matches the layers whose names contain one of `entries`, or, with `is_regex`, match one of them anywhere."""

    entries: tuple[str, ...]
    is_regex: bool = False

    def takes(self, path: str) -> bool:
        """Return whether a layer is taken. Raises PatternError for a regular expression that cannot be used."""
        return any(self._matches(entry, path) for entry in self.entries)

    def idle_entries(self, paths: Iterable[str]) -> list[str]:
        """Return the entries that take none of these layers. Raises PatternError as `takes` does."""
        known = list(paths)
        return [entry for entry in self.entries if not any(self._matches(entry, path) for path in known)]

    def _matches(self, entry: str, path: str) -> bool:
        return _is_found(entry, path) if self.is_regex else entry in path


@lru_cache(maxsize=100_000)
def _is_found(pattern: str, path: str) -> bool:
    """Return whether a regular expression matches anywhere in a layer's name.

    An estimate needs it of each layer in each pass, and a search for settings that fit makes dozens of estimates.
    """
    from modules.system.patterns import compiled_pattern  # few configs have regular expressions

    return compiled_pattern(pattern).is_in(path)


EVERYTHING = LayerFilter(("",))

LayerPresets = Mapping[str, LayerFilter]
"""The filters of a model's presets "attention_mlp", "attention" and "blocks", by name."""


def layer_filter(preset: str, presets: LayerPresets, names: str = "", *, is_regex: bool = False) -> LayerFilter:
    """Return the filter of a preset of a model, or with "custom" the filter of `names`, which may be empty.

    The names are separated by commas, except inside the brackets of a regular expression, as in "a{1,2}".
    """
    if preset == "all":
        return EVERYTHING
    if preset != "custom":
        return presets[preset]
    entries = _split(names) if is_regex else names.split(",")
    return LayerFilter(tuple(e for entry in entries if (e := entry.strip())), is_regex)


def select_layers(layers: LayerFilter, paths: Iterable[str], *, page: str) -> list[str]:
    """Return the layers that a filter matches, in their order.

    Raises DarkroomError if an entry matches no layer, since it is probably misspelled; `page` is the window's page with
    the setting.
    """
    known = list(paths)
    if idle := layers.idle_entries(known):
        raise DarkroomError(
            f"No layer's name {'matches' if layers.is_regex else 'contains'} {idle[0]!r}, which is one of the layer "
            "names.",
            advice=f"Correct it on the {page} page, as in {EXAMPLES}.",
        )
    return [path for path in known if layers.takes(path)]


def invalid_entry(layers: LayerFilter) -> tuple[str, str] | None:
    """Return the first entry that is not a usable regular expression, and the reason; None if all are usable."""
    if not layers.is_regex:
        return None
    from modules.system.patterns import fault_of_pattern

    faults = ((entry, fault_of_pattern(entry)) for entry in layers.entries)
    return next(((entry, fault) for entry, fault in faults if fault), None)


def _split(text: str) -> list[str]:
    """Return the entries between the commas that are outside of brackets."""
    entries = [""]
    groups, in_set, is_escaped = 0, False, False
    for character in text:
        if character == "," and not (groups or in_set):
            entries.append("")
            continue
        entries[-1] += character
        if is_escaped:
            is_escaped = False
        elif character == "\\":
            is_escaped = True
        elif in_set:
            in_set = character != "]"
        elif character == "[":
            in_set = True
        else:
            groups = max(0, groups + (character in "({") - (character in ")}"))
    return entries
