"""The changes of matrices that contain the weights of several layers (`AdapterTarget.pieces`), by their shapes.

The published files of some models have the projections of queries, keys and values in one matrix, diffusers has three.
The change of a piece is some rows of the whole change: exact for LoRA and LoHa, whose left factors have these rows.
Three LoRAs become one of the sum of their ranks, whose up matrix is block-diagonal (`fused_changes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from modules.formats.adapter_names import DOWN, UP, dora_axis
from modules.formats.adapter_targets import AdapterTarget
from modules.formats.adapter_types import DORA_SCALE, Shape, Shapes, adapter_type
from modules.system.regular_files import json_object_in

RANKS_KEY = "darkroom_matrix_ranks"
"""The metadata key with the ranks of the pieces of block-diagonal layers, as JSON by the matrix's path."""

UNDIVIDED_ADVICE = "Choose a LoRA file, or one whose layers have the names of diffusers or SimpleTuner."
_MAX_RANKS_CHARS = 500_000


def ranks_in(metadata: Mapping[str, str]) -> Mapping[str, tuple[int, ...]]:
    """Return the ranks of the pieces of block-diagonal layers, by the matrix's path, from the metadata of a file."""
    text = metadata.get(RANKS_KEY, "{}")
    stated = json_object_in(text) or {} if len(text) <= _MAX_RANKS_CHARS else {}
    return {p: tuple(r) for p, r in stated.items() if isinstance(r, list) and all(type(n) is int and n >= 0 for n in r)}


def why_undivided(target: AdapterTarget, shapes: Shapes) -> str:
    """Return why the change of a matrix by factors of these shapes cannot be divided; empty if it can."""
    known = adapter_type(shapes)
    if known is None or not known.row_factors:
        return f"by {known.label if known else 'an unknown type'}"
    if known.has_tucker_core(shapes):
        return f"by {known.label} in Tucker's form"
    if DORA_SCALE in shapes and dora_axis(shapes[DORA_SCALE]) == "inputs":
        return "by DoRA on the input axis"
    rows = target.weight[0]
    if any(shapes[name][:1] != (rows,) for name in known.row_factors & shapes.keys()):
        return "by factors of another size"
    return ""


def undivided_message(where: str, path: str, why: str) -> str:
    """Return the message about the file named `where`, whose change of the matrix `path` cannot be divided."""
    return f"{where} changes {path}, which this model has as several layers, {why}, which cannot be divided."


def divided_shapes(target: AdapterTarget, shapes: Shapes, ranks: Sequence[int] = ()) -> list[dict[str, Shape]]:
    """Return the shapes of the factors of each piece, {} for one without a change; see `fused_changes.divide`."""
    blocks = blocks_of(target, shapes, ranks)
    pieces: list[dict[str, Shape]] = []
    for number, piece in enumerate(target.pieces):
        factors = {n: (piece.weight[0], *s[1:]) if has_rows(n, shapes) else s for n, s in shapes.items()}
        if blocks:
            rank = blocks[number]
            factors |= {DOWN: (rank, *shapes[DOWN][1:]), UP: (piece.weight[0], rank)}
        pieces.append({} if blocks and not blocks[number] else factors)
    return pieces


def has_rows(name: str, factors: Iterable[str]) -> bool:
    """Return whether a factor has the rows of the matrix."""
    known = adapter_type(factors)
    return name == DORA_SCALE or (known is not None and name in known.row_factors)


def blocks_of(target: AdapterTarget, shapes: Shapes, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of the blocks of a LoRA; none where they are not known or do not fit it."""
    fits = DOWN in shapes and len(ranks) == len(target.pieces) and sum(ranks) == shapes[DOWN][0] and len(ranks) > 1
    return tuple(ranks) if fits else ()
