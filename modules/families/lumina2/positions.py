"""The positions of Lumina-Image 2.0's tokens, as diffusers has them, but without a wait for the device.

A prompt's tokens are numbered along the first axis; an image's have the prompt's length there, then row and column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from modules.system.devices import widest_float

_THETA = 10000.0


class Positions(nn.Module):
    """diffusers' `Lumina2RotaryPosEmbed` (Su et al. 2021, arXiv 2104.09864): it also cuts latents into patches.

    diffusers reads the lengths of prompts from their mask, on the device; here the caller sets them (`of`).
    """

    def __init__(self, axes: Sequence[int], sizes: Sequence[int], side: int) -> None:
        super().__init__()
        self._axes, self._sizes, self._side = tuple(axes), tuple(sizes), side
        self._tables: dict[torch.device, tuple[torch.Tensor, ...]] = {}
        self.lengths: Sequence[int] = ()

    @contextmanager
    def of(self, lengths: Sequence[int]) -> Iterator[None]:
        """Set the lengths of the prompts for a forward pass within this context."""
        self.lengths = lengths
        try:
            yield
        finally:
            self.lengths = ()

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> tuple[Any, ...]:
        """Return the patches (B, P, S * S * C), the rotations (B, tokens, F) of texts, images, and both in a row, and
        the lengths of texts and of both.
        """
        batch, channels, height, width = hidden_states.shape
        rows, columns, side = height // self._side, width // self._side, self._side
        lengths = list(self.lengths) or attention_mask.sum(dim=1).tolist()
        if hidden_states.device not in self._tables:
            self._tables[hidden_states.device] = self._make_tables(hidden_states.device)
        first, second, third = self._tables[hidden_states.device]
        texts, images = [], []
        for length in lengths:
            origin = torch.cat([second[0], third[0]]).expand(length, -1)
            texts.append(torch.cat([first[:length], origin], dim=-1))
            axes = (
                first[length].expand(rows, columns, -1),
                second[:rows, None].expand(-1, columns, -1),
                third[None, :columns].expand(rows, -1, -1),
            )
            images.append(torch.cat(axes, dim=-1).flatten(0, 1))
        both = [torch.cat(pair) for pair in zip(texts, images, strict=True)]
        patches = hidden_states.view(batch, channels, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
        padded = (_pad_rows(texts, attention_mask.shape[1]), torch.stack(images), _pad_rows(both, max(map(len, both))))
        return patches.flatten(3).flatten(1, 2), *padded, lengths, [len(one) for one in both]

    def _make_tables(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return the rotations (size, F) of every axis, as complex numbers."""
        tables, dtype = [], widest_float(device)
        for channels, size in zip(self._axes, self._sizes, strict=True):
            powers = torch.arange(0, channels, 2, device=device, dtype=dtype) / channels
            angles = torch.outer(torch.arange(size, device=device, dtype=dtype), _THETA**-powers)
            tables.append(torch.polar(torch.ones_like(angles), angles).to(torch.complex64))
        return tuple(tables)


def _pad_rows(rows: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    return torch.stack([nn.functional.pad(row, (0, 0, 0, length - len(row))) for row in rows])


def set_positions(transformer: Any) -> Positions:
    """Replace the positions of a `Lumina2Transformer2DModel` by `Positions`, and return them."""
    config = transformer.config
    positions = Positions(config.axes_dim_rope, config.axes_lens, config.patch_size)
    transformer.rope_embedder = positions
    return positions
