"""The sizes of LoKr's factors: those of LyCORIS, as peft has them."""

from __future__ import annotations

import math

import pytest
from peft.tuners.lokr.layer import factorization as of_peft

from modules.adapters.lokr import Lokr, factor_shapes, factorization


@pytest.mark.parametrize("factor", [-1, 2, 4, 6, 8, 16])
def test_sizes_are_split_as_lycoris_splits_them(factor: int) -> None:
    for size in (1, 2, 4, 12, 77, 127, 128, 320, 640, 768, 1024, 1280, 2048, 2816, 5120, 10240):
        # LyCORIS puts the smaller one first; peft's copy of its function leaves a factor that divides where it is.
        assert factorization(size, factor) == tuple(sorted(of_peft(size, factor))), size


@pytest.mark.parametrize(
    ("settings", "weight", "shapes"),
    [
        ({"rank": 4}, (320, 768), {"lokr_w1": (16, 24), "lokr_w2_a": (20, 4), "lokr_w2_b": (4, 32)}),
        ({"rank": 16}, (320, 768), {"lokr_w1": (16, 24), "lokr_w2": (20, 32)}),
        ({"rank": 4, "full_matrix": True}, (320, 768), {"lokr_w1": (16, 24), "lokr_w2": (20, 32)}),
        ({"rank": 4, "factor": 8}, (320, 768), {"lokr_w1": (8, 8), "lokr_w2_a": (40, 4), "lokr_w2_b": (4, 96)}),
        (
            {"rank": 4, "decompose_both": True}, (320, 768),
            {"lokr_w1_a": (16, 4), "lokr_w1_b": (4, 24), "lokr_w2_a": (20, 4), "lokr_w2_b": (4, 32)},
        ),
        ({"rank": 2}, (64, 32, 3, 3), {"lokr_w1": (8, 4), "lokr_w2_a": (8, 2), "lokr_w2_b": (2, 72)}),
        (
            {"rank": 2, "use_tucker": True}, (64, 32, 3, 3),
            {"lokr_w1": (8, 4), "lokr_t2": (2, 2, 3, 3), "lokr_w2_a": (2, 8), "lokr_w2_b": (2, 8)},
        ),
        ({"rank": 2, "use_tucker": True}, (9, 4, 1, 1), {"lokr_w1": (3, 2), "lokr_w2": (3, 2, 1, 1)}),
        ({"rank": 8}, (64, 32, 3, 3), {"lokr_w1": (8, 4), "lokr_w2": (8, 8, 3, 3)}),
    ],
)  # fmt: skip
def test_factors_have_the_shapes_of_lycoris(
    settings: dict[str, object], weight: tuple[int, ...], shapes: dict[str, tuple[int, ...]]
) -> None:
    found = factor_shapes(Lokr.model_validate(settings), weight)
    assert found == shapes
    first, second = (_numbers(found, side) for side in ("w1", "w2"))
    assert first * second == math.prod(weight)


def _numbers(shapes: dict[str, tuple[int, ...]], side: str) -> int:
    """How many numbers a matrix has once its factors are multiplied."""
    whole = shapes.get(f"lokr_{side}")
    if whole is not None:
        return math.prod(whole)
    a, b = shapes[f"lokr_{side}_a"], shapes[f"lokr_{side}_b"]
    core = shapes.get("lokr_t2") if side == "w2" else None
    return a[1] * b[1] * math.prod(core[2:]) if core else a[0] * b[1]
