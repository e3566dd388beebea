"""The settings of PixArt, and the facts in the config of its transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from modules.families.settings import FamilySettings

MAX_TOKENS, ALPHA_TOKENS = 300, 120
"""The tokens that sigma and alpha read of a prompt, with the end token (their pipelines in diffusers)."""
_WITH_SIZES_PX = 128
"""The side of latents for which a config that does not state it has size conditions (diffusers' class)."""


class PixArtSettings(FamilySettings):
    """Small (0.6 billion weights) with a large text encoder (T5)."""

    name: Literal["pixart"] = "pixart"

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that T5 reads of a prompt, without the end token."""
        return ALPHA_TOKENS - 1 if denoiser and is_alpha(denoiser) else most


def is_alpha(config: Mapping[str, Any]) -> bool:
    """Return whether a transformer is PixArt alpha's: only configs of sigma state that there are no size conditions."""
    return config.get("use_additional_conditions") is not False


def has_size_conditions(config: Mapping[str, Any]) -> bool:
    """Return whether a transformer reads the size and the aspect ratio of images, as alpha of 1024 px does."""
    stated = config.get("use_additional_conditions")
    return bool(config["sample_size"] == _WITH_SIZES_PX if stated is None else stated)
