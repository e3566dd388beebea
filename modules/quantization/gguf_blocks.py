"""Weights packed in the blocks of a GGUF file: they are used as they are stored there, and never packed here."""

from __future__ import annotations

import torch

from modules.formats.gguf_header import BlockType
from modules.formats.gguf_tensors import block_function, unpacked_blocks
from modules.quantization.packing import ROWS, Stored
from modules.quantization.spec import Rounding


class GgufBlocks:
    """The bytes of blocks of one type. Their scales are inside: `Stored.scales` is empty."""

    def __init__(self, kind: BlockType) -> None:
        self.kind = kind
        self._unpack = block_function(kind)

    def pack(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Raise TypeError: the weights of a file are packed already."""
        raise TypeError(f"weights are never packed to {self.kind.name}")

    def table(self) -> None:
        """Return nothing: there are no constants."""
        return

    def unpack(self, stored: Stored, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return the weight in a dtype."""
        return unpacked_blocks(stored.packed, self.kind, self._unpack, dtype).view(shape)

    def rows(self, stored: Stored, shape: tuple[int, int], rounding: Rounding) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weight rounded again, at each use."""
        return ROWS[rounding].pack(self.unpack(stored, shape, torch.float32))
