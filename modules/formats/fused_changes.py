"""Divides and joins the changes of matrices that contain the weights of several layers (`fused_layers`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import torch

from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN, UP, dora_axis
from modules.formats.adapter_targets import AdapterTarget
from modules.formats.adapter_types import DORA_SCALE
from modules.formats.fused_layers import RANKS_KEY, blocks_of, has_rows
from modules.system.errors import DarkroomError


def divide(layer: AdapterLayer, target: AdapterTarget, ranks: Sequence[int] = ()) -> list[AdapterLayer]:
    """Return the changes of the pieces of a matrix. The change must be one that can be divided (`why_undivided`).

    `ranks` are the ranks of the pieces if the LoRA is block-diagonal; any other LoRA is divided by its rows alone.
    """
    blocks = blocks_of(target, layer.shapes, ranks)
    if blocks and not _is_block_diagonal(layer.factors[UP], target, blocks):
        blocks = ()
    pieces: list[AdapterLayer] = []
    first_row = first_rank = 0
    for number, piece in enumerate(target.pieces):
        rows = slice(first_row, first_row + piece.weight[0])
        first_row = rows.stop
        factors = {n: _rows(f, rows, target) if has_rows(n, layer.factors) else f for n, f in layer.factors.items()}
        alpha = layer.alpha
        if blocks:
            of_piece = slice(first_rank, first_rank + blocks[number])
            first_rank = of_piece.stop
            factors |= {DOWN: layer.factors[DOWN][of_piece], UP: factors[UP][:, of_piece]}
            alpha = None if alpha is None else alpha * blocks[number] / sum(blocks)
            if not blocks[number]:
                continue
        factors = {name: factor.contiguous() for name, factor in factors.items()}
        pieces.append(AdapterLayer(piece.part, piece.path, factors, alpha))
    return pieces


def join(
    layers: Iterable[AdapterLayer], matrices: Iterable[AdapterTarget]
) -> tuple[list[AdapterLayer], dict[str, str]]:
    """Join the LoRA layers of each matrix; return all layers, and the metadata with the ranks of the pieces.

    Changes that have no such form stay as they are, under the names of their own layers. Raises DarkroomError for
    layers of another size than the matrices.
    """
    by_place = {(layer.part, layer.path): layer for layer in layers}
    ranks: dict[str, list[int]] = {}
    for target in matrices:
        places = [(piece.part, piece.path) for piece in target.pieces]
        members = [by_place.get(place) for place in places]
        if not any(members) or not _can_join(members):
            continue
        by_place[target.part, target.path] = _join_members(target, members)
        for place in places:
            by_place.pop(place, None)
        if len(members) > 1:
            ranks[target.path] = [0 if m is None else m.rank for m in members]
    return list(by_place.values()), {RANKS_KEY: json.dumps(ranks)} if ranks else {}


def _can_join(members: Sequence[AdapterLayer | None]) -> bool:
    there = [m for m in members if m is not None]
    if not all({DOWN, UP} <= m.factors.keys() <= {DOWN, UP, DORA_SCALE} and m.factors[UP].ndim == 2 for m in there):
        return False
    scales = [m.factors[DORA_SCALE] for m in there if DORA_SCALE in m.factors]
    if not scales:
        return True
    return len(scales) == len(members) and all(dora_axis(tuple(s.shape)) == "outputs" for s in scales)


def _join_members(target: AdapterTarget, members: Sequence[AdapterLayer | None]) -> AdapterLayer:
    there = [m for m in members if m is not None]
    rank, strength = sum(m.rank for m in there), there[0].scale
    down = torch.cat([m.factors[DOWN] for m in there])
    dtype = torch.promote_types(down.dtype, there[0].factors[UP].dtype)
    up = torch.zeros(target.weight[0], rank, dtype=dtype)
    first_row = first_rank = 0
    for piece, member in zip(target.pieces, members, strict=True):
        rows = slice(first_row, first_row + piece.weight[0])
        first_row = rows.stop
        if member is not None:
            factor = member.factors[UP].cpu()
            if len(factor) != piece.weight[0]:
                raise DarkroomError(
                    f"The LoRA is for a model of another size: its layer {member.path} has {len(factor):,} outputs "
                    f"instead of {piece.weight[0]:,}.",
                    advice="Choose the file as its trainer wrote it, whose metadata contain the size of the model.",
                )
            if member.scale != strength:
                factor = factor.float() * (member.scale / strength)
            up[rows, first_rank : first_rank + member.rank] = factor.to(dtype)
            first_rank += member.rank
    everything = slice(0, target.weight[0])
    factors = {DOWN: down, UP: _rows(up, everything, target)}
    if DORA_SCALE in there[0].factors:
        factors[DORA_SCALE] = _rows(torch.cat([m.factors[DORA_SCALE] for m in there]), everything, target)
    return AdapterLayer(target.part, target.path, factors, strength * rank)


def _rows(factor: torch.Tensor, rows: slice, target: AdapterTarget) -> torch.Tensor:
    return factor.roll(len(factor) // 2, 0) if target.swapped else factor[rows]


def _is_block_diagonal(up: torch.Tensor, target: AdapterTarget, ranks: Sequence[int]) -> bool:
    outside = up.clone()
    first_row = first_rank = 0
    for piece, rank in zip(target.pieces, ranks, strict=True):
        outside[first_row : first_row + piece.weight[0], first_rank : first_rank + rank] = 0
        first_row, first_rank = first_row + piece.weight[0], first_rank + rank
    return not bool(outside.float().any())
