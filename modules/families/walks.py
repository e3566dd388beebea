"""The memory walks of a family's parts, for the estimate; its `memory` module fills the record in."""

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
    """Walks through a text encoder for a number of chunks of tokens."""

    def __call__(self, walk: Walk, part: str, config: PartConfig, *, chunks: int) -> Array: ...


class DenoiserPass(Protocol):
    """Walks through the denoiser for a batch; `text` are the states of trained encoders, None for new arrays."""

    def __call__(
        self, walk: Walk, config: PartConfig, *, batch: int, width_px: int, height_px: int, text: Array | None
    ) -> Array: ...


class EncodePass(Protocol):
    """Walks through the VAE's encoder for `batch` images."""

    def __call__(self, walk: Walk, config: PartConfig, *, width_px: int, height_px: int, batch: int = 1) -> Array: ...


class DecodePass(Protocol):
    """Walks through the VAE's decoder for `batch` images."""

    def __call__(
        self,
        walk: Walk,
        config: PartConfig,
        *,
        width_px: int,
        height_px: int,
        needs_grad: bool = False,
        batch: int = 1,
    ) -> Array: ...


@dataclass(frozen=True, slots=True)
class TextSize:
    """The size of an encoded chunk of a caption: tokens, the width of each state, the width of the pooled state."""

    tokens: int
    width: int
    pooled_width: int = 0


@dataclass(frozen=True, slots=True)
class FamilyMemory:
    """The memory walks of a family's parts, and its own facts about their layers.

    `blocks` matches, by part, the name prefixes of its checkpointed (and offloaded) blocks. `unreached(part, config,
    skipped_layers)` returns the name prefixes of the layers that no gradient reaches, where so many of the encoder's
    last layers are skipped (`FamilySettings.skipped_layers`). A family without a VAE has no `encode` and `decode`.
    """

    blocks: Mapping[str, re.Pattern[str]]
    text: TextPass
    denoise: DenoiserPass
    text_size: Callable[[Configs], TextSize]
    unreached: Callable[[str, PartConfig, int], tuple[str, ...]]
    encode: EncodePass | None = None
    decode: DecodePass | None = None
