"""The protocol of a reward, the context it is built with, and its files.

Shapes: B images, P height and width in pixels, which need not be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from modules.formats.hub_files import Downloads, local_file
from modules.memory.checkpointing import create_checkpointed_forward
from modules.rewards.settings import Scorer, wanted_files
from modules.rewards.waiting import Patience, ignore, nothing_to_stop
from modules.system.devices import CPU, Device, move
from modules.system.secrets import HubAccess


class Reward(Protocol):
    """Scores images. Its label and its files are in its record (`registry.py`)."""

    @property
    def is_differentiable(self) -> bool:
        """Whether a gradient passes from the scores to the images."""
        ...

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,) of float32 images in [0, 1]; NaN where an image cannot be scored."""
        ...


@dataclass(frozen=True, slots=True)
class RewardContext:
    """The device on which rewards are computed, and the permissions to download files and run code.

    `approved_hashes` are the hashes of the code files that the user approved; they are stored outside of any config.
    `on_bytes(done, total)` reports the progress of downloads and may raise to cancel one. `check()` is called before
    each image by rewards that score one image after the other, and may raise to stop the run there; `warn(message,
    advice)` reports that one of them has to wait.
    `vision_model_key` is the key for the server of a vision language model; it is never part of a config.
    """

    device: Device
    temp_device: Device = CPU
    offline: bool = False
    hub_cache_dir: str = ""
    hub: HubAccess | None = field(default=None, repr=False)
    approved_hashes: frozenset[str] = frozenset()
    on_bytes: Callable[[float, float], None] | None = field(default=None, repr=False)
    check: Callable[[], None] = field(default=nothing_to_stop, repr=False)
    warn: Callable[[str, str], None] = field(default=ignore, repr=False)
    vision_model_key: str = field(default="", repr=False)
    placed: list[nn.Module] = field(default_factory=list, repr=False)
    closing: list[Callable[[], None]] = field(default_factory=list, repr=False)
    """Functions that end the processes which score images, called when the run ends."""

    @property
    def patience(self) -> Patience:
        """How rewards wait for other programs."""
        return Patience(self.check, warn=self.warn)

    def place(self, module: nn.Module) -> None:
        """Move a reward model's module to the device. It is among the `placed` ones, which a pause may offload."""
        module._apply(lambda tensor: move(tensor, self.device))
        self.placed.append(module)

    def with_checkpointing(self, module: nn.Module, block_type: type[nn.Module]) -> Callable[..., Any]:
        """Return a placed module's forward pass, checkpointed at each of its blocks."""
        return create_checkpointed_forward(
            module,
            train_device=self.device,
            temp_device=self.temp_device,
            mode="block",
            block_types=(block_type,),
        )


def files_of(scorer: Scorer, context: RewardContext) -> dict[str, Path]:
    """Return the files, or folders, that a reward model needs, by the setting that can name them; missing ones are
    downloaded.

    Raises DarkroomError where one is missing and cannot be downloaded.
    """
    downloads = Downloads(context.offline, context.hub_cache_dir, context.hub, context.on_bytes)
    return {w.published.slot: local_file(w, downloads, needed_by="The reward") for w in wanted_files(scorer)}
