"""The run of a block in a recorded pass, kept for the blocks that are equal to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from modules.memory.arrays import Array, Meter, Storage
from modules.memory.recording import Call, Operation, Program

Facts = tuple[int, int, bool, bool, int]


class BlockRun(NamedTuple):
    """The run of a block without blocks inside, in a pass without gradients.

    `peak` are the bytes in use at its peak, besides those of before. `results` are its results without their storages,
    each with the number of its storage: those of the inputs come first, then the new `storages`, by their bytes.
    `casts` are the elements of the weights' casts that stay, by the names below the block's.
    """

    peak: int
    results: tuple[tuple[int, Facts], ...]
    storages: tuple[int, ...]
    casts: tuple[tuple[str, int], ...]


def run_of(
    peak: int, prefix: str, inputs: Sequence[Array], results: Sequence[Array], casts: Sequence[tuple[str, Array]]
) -> BlockRun:
    """Return the run of a block at a prefix, from its peak in bytes, inputs, results and the casts that stay."""
    storages = [x.storage for x in inputs]
    for result in results:
        if result.storage not in storages:
            storages.append(result.storage)
    return BlockRun(
        peak,
        tuple((storages.index(result.storage), without_storage(result)) for result in results),
        tuple(storage.num_bytes for storage in storages[len(inputs) :]),
        tuple((name.removeprefix(prefix), cast.numel) for name, cast in casts),
    )


def repeat_run(run: BlockRun, inputs: Sequence[Array], meter: Meter) -> list[Array]:
    """Return the results of an equal block for other inputs; a meter counts their new storages."""
    storages = [x.storage for x in inputs] + [Storage(meter, num_bytes) for num_bytes in run.storages]
    return [
        Array(numel, item_bytes, needs_grad, storages[place], is_float, channels)
        for place, (numel, item_bytes, needs_grad, is_float, channels) in run.results
    ]


def layers_of(program: Program) -> Sequence[str] | None:
    """Return the names of the layers with weights of a block; None if it has blocks inside."""
    if any(isinstance(step, Call) for step in program.steps):
        return None
    operations = [step for step in program.steps if isinstance(step, Operation)]
    products = {o.weights[0].removesuffix(".weight") for o in operations if o.kind in ("linear", "conv")}
    return sorted(products | {name.rpartition(".")[0] for o in operations for name in o.weights})


def without_storage(x: Array) -> Facts:
    """Return the facts of an array, which equal arrays share."""
    return x.numel, x.item_bytes, x.needs_grad, x.is_float, x.channels
