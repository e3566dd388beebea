"""The block sizes of OFT: as LyCORIS and peft choose them, but never blocks of one channel, which cannot rotate."""

from __future__ import annotations

import pytest

from modules.adapters.lokr import factorization
from modules.adapters.oft import OFT, Oft, block_size_of, factor_shapes, problems


def test_no_layer_gets_blocks_of_one_channel() -> None:
    for size in range(4, 400):
        is_prime = all(size % n for n in range(2, size))
        for block_size in (2, 3, 8, 31, 32, 64, 320, size):
            outputs, inputs = (
                block_size_of(Oft(block_size=block_size, rotates=side), size) for side in ("outputs", "inputs")
            )
            assert size % outputs == size % inputs == 0
            assert inputs > 1
            assert (outputs == 1) == is_prime
            assert outputs <= size // outputs, "LyCORIS loads no others"
            if (usual := factorization(size, block_size)[0]) > 1:
                assert outputs == usual, "files and backups of older versions have these"


@pytest.mark.parametrize(("outputs", "block_size", "side"), [(320, 320, 16), (32, 32, 4), (64, 64, 8), (35, 3, 5)])
def test_a_block_as_large_as_the_outputs_gives_the_nearest_useful_size(
    outputs: int, block_size: int, side: int
) -> None:
    settings = Oft(block_size=block_size)
    assert factor_shapes(settings, (outputs, 8)) == {"oft_blocks": (outputs // side, side, side)}
    assert OFT.problems is problems
    [problem] = problems(settings, [(outputs, 8), (outputs, 16), (1280, 8)])
    assert (problem.path, problem.severity) == ("adapter.block_size", "info")
    assert f"{outputs} outputs" in problem.message
    assert f"blocks of {side}" in problem.message


def test_outputs_that_no_block_divides_are_an_error() -> None:
    [problem] = problems(Oft(), [(7, 8), (320, 8)])
    assert (problem.path, problem.severity) == ("adapter.layers", "error")
    assert "7 outputs" in problem.message
    assert not list(problems(Oft(rotates="inputs"), [(7, 8), (7, 7)]))
    assert not list(problems(Oft(), [(320, 8), (640, 3)]))
