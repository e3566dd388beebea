"""The record of a reward. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from modules.system.package import Package

Slot = Literal["file", "clip_model", "vocabulary"]


@dataclass(frozen=True, slots=True)
class RewardFile:
    """A published file that a reward needs: its repository and its approximate size.

    `slot` is the setting that can name a replacement. `name` is the single file that is needed, or empty for a CLIP
    model in transformers' layout: its config.json and model.safetensors. `item_bytes` is the size of an element.
    """

    slot: Slot
    repo: str
    name: str
    size_bytes: int
    item_bytes: int = 4

    @property
    def names(self) -> tuple[str, ...]:
        """The files of the repository that are needed, the largest last."""
        return (self.name,) if self.name else ("config.json", "model.safetensors")

    @property
    def loaded_bytes(self) -> int:
        """The memory it needs on the training device, where reward models are in float32."""
        return self.size_bytes * 4 // self.item_bytes

    @property
    def size_words(self) -> str:
        """The size of the download as text, in GB or MB."""
        size = self.size_bytes
        return f"{size / 1e9:.1f} GB" if size >= 5e8 else f"{max(size / 1e6, 1):.0f} MB"


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """The facts about a reward that are known before anything is loaded.

    `factory` names the function that builds it, as "module:function", called with a `Scorer` and a `RewardContext`.
    `scale` describes its scores; `licence` and `source` are those of the weights. `checks` maps settings to functions
    that raise DarkroomError where the setting's text is not valid; `own_settings` are further settings that it uses.
    `packages` are the optional packages that it imports. `runs_code`: its `file` names a function of the user's own.
    Without `is_differentiable` only methods that need no gradient can train on it.
    """

    name: str
    label: str
    help: str
    factory: str
    scale: str
    is_differentiable: bool = True
    files: tuple[RewardFile, ...] = ()
    licence: str = ""
    source: str = ""
    checks: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    own_settings: frozenset[str] = frozenset()
    packages: tuple[Package, ...] = ()
    runs_code: bool = False

    @property
    def settings(self) -> frozenset[str]:
        """The fields of `Scorer` that it uses, beside those of every reward."""
        return frozenset(file.slot for file in self.files) | self.checks.keys() | self.own_settings
