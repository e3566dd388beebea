"""Random masks for training an inpainting model."""

from __future__ import annotations

import random

import numpy as np
import pytest

from modules.data.buckets import Size
from modules.data.transforms.masks import random_inpainting_mask

NUM_MASKS = 200


@pytest.mark.parametrize("size", [Size(64, 64), Size(96, 40), Size(1, 1), Size(8, 200)])
def test_masks_are_black_and_white_and_never_black_alone(size: Size) -> None:
    for seed in range(NUM_MASKS):
        mask = random_inpainting_mask(size, random.Random(seed))
        assert (mask.shape, mask.dtype) == ((size.height_px, size.width_px), np.uint8)
        assert set(np.unique(mask).tolist()) <= {0, 255}
        assert mask.any()


def test_a_quarter_is_white_and_the_others_leave_something() -> None:
    shares = [(random_inpainting_mask(Size(64, 64), random.Random(n)) == 255).mean() for n in range(NUM_MASKS)]
    assert 0.18 < sum(share == 1 for share in shares) / NUM_MASKS < 0.32
    others = [share for share in shares if share < 1]
    assert 0.2 < sum(others) / len(others) < 0.6
    assert min(others) > 0.01


def test_equal_generators_draw_equal_masks() -> None:
    one, same, other = (random_inpainting_mask(Size(64, 48), random.Random(seed)) for seed in (3, 3, 5))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
