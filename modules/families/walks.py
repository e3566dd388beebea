"""How the memory estimate walks over a family's parts: the record that its `memory` module fills in. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from modules.memory.tape import Array
from modules.memory.walk import Walk

PartConfig = Mapping[str, Any]
Configs = Mapping[str, PartConfig]


class TextPass(Protocol):
    """Walks through a text encoder for some chunks of tokens."""

    def __call__(self, walk: Walk, part: str, config: PartConfig, *, chunks: int) -> Array: ...


class DenoiserPass(Protocol):
    """Walks through the denoiser for a batch; `text` are the states of encoders that learn, None for fresh ones."""

    def __call__(
        self, walk: Walk, config: PartConfig, *, batch: int, width_px: int, height_px: int, text: Array | None
    ) -> Array: ...


class EncodePass(Protocol):
    """Walks the VAE's way from one image to its latents."""

    def __call__(self, walk: Walk, config: PartConfig, *, width_px: int, height_px: int) -> Array: ...


class DecodePass(Protocol):
    """Walks the VAE's way from the latents of one image to the image."""

    def __call__(
        self, walk: Walk, config: PartConfig, *, width_px: int, height_px: int, needs_grad: bool = False
    ) -> Array: ...


@dataclass(frozen=True, slots=True)
class TextSize:
    """What a chunk of a caption becomes: tokens, the width of each state, the width of the pooled one."""

    tokens: int
    width: int
    pooled_width: int = 0


@dataclass(frozen=True, slots=True)
class FamilyMemory:
    """The walks over a family's parts, and what only it knows of their shapes.

    `blocks` says by part how the names of its checkpointed (and offloaded) blocks begin. `unreached(part, config,
    clip_skip)` names the layers that no gradient reaches, as their names begin. A family without a VAE leaves `encode`
    and `decode` out.
    """

    blocks: Mapping[str, re.Pattern[str]]
    text: TextPass
    denoise: DenoiserPass
    text_size: Callable[[Configs], TextSize]
    unreached: Callable[[str, PartConfig, int], tuple[str, ...]]
    encode: EncodePass | None = None
    decode: DecodePass | None = None
