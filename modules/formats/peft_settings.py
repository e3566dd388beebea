"""PEFT's settings in the metadata of an adapter file: the alpha of each layer. Torch-free.

PEFT's files have no alpha beside the factors. diffusers since 0.34 stores the settings of each part under
`lora_adapter_metadata` and reads them again; other programs ignore them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

PEFT_SETTINGS = "lora_adapter_metadata"


class PeftAlphas:
    """The alphas of layers by PEFT's settings; settings that are damaged or not numbers count as none."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        self._settings = _settings_in(metadata)
        self._patterns: dict[str, dict[str, tuple[int, Any]]] = {}

    def find(self, part: str, path: str, rank: int) -> float | None:
        """Return the alpha of a layer, by its part or for the whole file; None where there is no usable one."""
        alpha = self.stated(part, path, rank)
        return alpha if alpha is not None and math.isfinite(alpha) else None

    def stated(self, part: str, path: str, rank: int) -> float | None:
        """Return the alpha of a layer as `find` does, but also one that is infinite or NaN, as in a damaged file."""
        alpha = self._own_alpha(part, path, self._setting(part, "lora_alpha"))
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            return None
        try:
            # Rank-stabilised LoRA (Kalajdzievski 2023) divides by the root of the rank.
            return float(alpha) * math.sqrt(rank) if self._setting(part, "use_rslora") is True else float(alpha)
        except OverflowError:
            return math.inf

    def _setting(self, part: str, name: str) -> Any:
        return self._settings.get(f"{part}.{name}", self._settings.get(name))

    def _own_alpha(self, part: str, path: str, usual: Any) -> Any:
        """Return the first entry of `alpha_pattern` that is the layer's path or the end of it, else the usual one."""
        if part not in self._patterns:
            self._patterns[part] = _by_target(self._setting(part, "alpha_pattern"))
        words = path.split(".")
        ends = (".".join(words[i:]) for i in range(len(words)))
        found = [self._patterns[part][end] for end in ends if end in self._patterns[part]]
        return min(found, key=lambda entry: entry[0])[1] if found else usual


def _settings_in(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        # Numbers as floats: Python refuses to read an integer of thousands of digits.
        settings = json.loads(metadata.get(PEFT_SETTINGS, "{}"), parse_int=float)
    except (ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _by_target(pattern: Any) -> dict[str, tuple[int, Any]]:
    """Return the places and the values of a pattern by target; the first one counts where two are the same."""
    found: dict[str, tuple[int, Any]] = {}
    for place, (target, value) in enumerate(pattern.items() if isinstance(pattern, dict) else ()):
        found.setdefault(target.removeprefix("^"), (place, value))
    return found
