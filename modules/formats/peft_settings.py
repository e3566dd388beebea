"""PEFT's settings of an adapter file: the alpha of each layer.

PEFT's files have no alpha next to the factors. diffusers since 0.34 stores the settings of each part under
`lora_adapter_metadata` and reads them again; other programs ignore them. PEFT itself saves them in a file
`adapter_config.json` next to the factors' file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from modules.formats.adapter_forms import RAW_PEFT, form_of
from modules.system.regular_files import read_regular

PEFT_SETTINGS = "lora_adapter_metadata"
_CONFIG = "adapter_config.json"
_MAX_CONFIG_BYTES = 4_000_000  # patterns for every layer of a model take 100,000


def with_peft_settings(path: Path, names: Iterable[str], metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return the metadata of an adapter file with the settings that PEFT saved next to it.

    `names` are the names of its tensors: no other program writes such a file next to its own.
    """
    if PEFT_SETTINGS in metadata or form_of(names) != RAW_PEFT.name:
        return metadata
    try:
        settings = read_regular(path.parent / _CONFIG, _MAX_CONFIG_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return metadata
    return {**metadata, PEFT_SETTINGS: settings}


def doubt_about_alpha(form: str, metadata: Mapping[str, str]) -> str:
    """Return a sentence if the alpha of a file of PEFT is not known; empty if it is, or for any other form.

    The strength is then 1, as for files of any form without an alpha.
    """
    if form != RAW_PEFT.name or _settings_in(metadata):
        return ""
    return f"Its alpha is unknown: PEFT stores it in {_CONFIG}, which is not next to the file. The strength used is 1."


class PeftAlphas:
    """The ranks and alphas of layers by PEFT's settings; settings that are damaged or not numbers count as missing."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        self._settings = _settings_in(metadata)
        self._patterns: dict[tuple[str, str], dict[str, tuple[int, Any]]] = {}

    def find(self, part: str, path: str, rank: int) -> float | None:
        """Return the alpha of a LoRA layer, by its part or for the whole file; None without a usable value."""
        alpha = self.alpha_as_stored(part, path, rank)
        return alpha if alpha is not None and math.isfinite(alpha) else None

    def alpha_as_stored(self, part: str, path: str, rank: int, *, setting: str = "lora_alpha") -> float | None:
        """Return the alpha of a layer like `find`, but also an infinite or NaN alpha of a damaged file.

        `setting` is PEFT's name of it, which differs for some types of adapters.
        """
        alpha = self._number(part, path, setting, "alpha_pattern")
        if alpha is None or self._setting(part, "use_rslora") is not True:
            return alpha
        return alpha * math.sqrt(rank)  # rank-stabilised LoRA (Kalajdzievski 2023) divides by the root of the rank

    def rank(self, part: str, path: str) -> float | None:
        """Return the rank that the settings give a layer; None without a usable value."""
        rank = self._number(part, path, "r", "rank_pattern")
        return rank if rank is not None and math.isfinite(rank) and rank > 0 else None

    def _number(self, part: str, path: str, setting: str, pattern: str) -> float | None:
        value = self._value_at(part, path, pattern, self._setting(part, setting))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value)
        except OverflowError:
            return math.inf

    def _setting(self, part: str, name: str) -> Any:
        return self._settings.get(f"{part}.{name}", self._settings.get(name))

    def _value_at(self, part: str, path: str, pattern: str, usual: Any) -> Any:
        """Return the first entry of a pattern that is the layer's path or the end of it, else the usual one."""
        entries = self._patterns.get((part, pattern))
        if entries is None:
            entries = self._patterns[part, pattern] = _by_target(self._setting(part, pattern))
        words = path.split(".")
        ends = (".".join(words[i:]) for i in range(len(words)))
        matches = [entries[end] for end in ends if end in entries]
        return min(matches, key=lambda entry: entry[0])[1] if matches else usual


def _settings_in(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        # Numbers as floats: Python refuses to read an integer of thousands of digits.
        settings = json.loads(metadata.get(PEFT_SETTINGS, "{}"), parse_int=float)
    except (ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _by_target(pattern: Any) -> dict[str, tuple[int, Any]]:
    """Return the places and the values of a pattern by target; the first one of equal targets counts."""
    by_name: dict[str, tuple[int, Any]] = {}
    for place, (target, value) in enumerate(pattern.items() if isinstance(pattern, dict) else ()):
        by_name.setdefault(target.removeprefix("^"), (place, value))
    return by_name
