"""What a reward is, and what it is made with.

Shapes: B images, P height and width in pixels, which need not be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from modules.system.devices import CPU, Device
from modules.system.secrets import HubAccess


class Reward(Protocol):
    """Rates images. What it is called and what files it needs stands in its record (`registry.py`)."""

    @property
    def is_differentiable(self) -> bool:
        """Whether a gradient passes from the ratings to the images."""
        ...

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the ratings (B,) of float32 images in [0, 1]; NaN where an image cannot be rated."""
        ...


@dataclass(frozen=True, slots=True)
class RewardContext:
    """Where rewards are computed, and what they may use to get there.

    `approved_hashes` are those of the files of code that the user let run; they are kept outside of any config.
    `on_bytes(done, total)` follows downloads and may raise to end one.
    """

    device: Device
    temp_device: Device = CPU
    offline: bool = False
    hub_cache_dir: str = ""
    hub: HubAccess | None = field(default=None, repr=False)
    approved_hashes: frozenset[str] = frozenset()
    on_bytes: Callable[[float, float], None] | None = field(default=None, repr=False)
