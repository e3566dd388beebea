"""The larger model that contains a part, such as the vision-language model around a text encoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_VISION = "vision_config"
_TOKEN_IDS = ("image_token_id", "vision_start_token_id", "vision_end_token_id")


@dataclass(frozen=True, slots=True)
class LargerModel:
    """The model that contains a part, and whose folders and files may stand in place of the part's own.

    They have the part's config under `config_key` or, in older files, among their own values. The names of its tensors
    there become its own by replacing the patterns that are the keys of `names` with their values; `others` matches the
    names of the other parts' tensors.

    With `vision_config` the part also contains the vision encoder, and its config has the configs of both.
    `vision_config` is the published one, for a config of the language model alone.
    """

    config_key: str
    names: Mapping[str, str] = field(hash=False)
    others: str
    vision_config: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def own_name(self, name: str) -> str:
        """Return the part's own name of a tensor in a file; empty for one of another part."""
        if re.search(self.others, name):
            return ""
        for pattern, replacement in self.names.items():
            name = re.sub(pattern, replacement, name)
        return name

    def own_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config of the part from one in a file, which may be the config of the larger model."""
        language = config.get(self.config_key)
        if not self.vision_config:
            return language if isinstance(language, Mapping) else config
        of_vision = {k: v for k, v in config.items() if k in (_VISION, *_TOKEN_IDS)}
        alone = {k: v for k, v in config.items() if k not in of_vision}
        return {self.config_key: language or alone, _VISION: dict(self.vision_config), **of_vision}
