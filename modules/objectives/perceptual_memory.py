"""The memory of the perceptual distance LPIPS (`perceptual.py`), on the memory estimate's tape. Torch-free."""

from __future__ import annotations

from modules.memory.tape import FLOAT32_BYTES, Array
from modules.memory.walk import Walk
from modules.objectives.perceptual_files import STAGES, WIDTHS

_INDEX_BYTES = 8


def perceptual_bytes() -> int:
    """Return the bytes of the published VGG16's convolutions and of LPIPS's weights."""
    total, width_in = 0, 3
    for stage, width in zip(STAGES, WIDTHS, strict=True):
        for _ in stage:
            total += width * (9 * width_in + 1)
            width_in = width
        total += width
    return FLOAT32_BYTES * total


def perceptual_pass(walk: Walk, decoded: Array) -> list[Array]:
    """Run the distance of decoded images (B, 3, H, W) from images of the same size; return what stays beside the tape.

    `walk` is in float32, without trained weights.
    """
    images = walk.new(decoded.shape)
    targets = _features(walk, images)
    found = _features(walk, walk.to(decoded, FLOAT32_BYTES))
    kept = [*targets]
    for features, target in zip(found, targets, strict=True):
        difference = walk.add(features, target)
        walk.product(difference, difference)  # its square saves it
        kept.append(difference)
    return kept


def _features(walk: Walk, images: Array) -> list[Array]:
    x, found = walk.copy(images), []
    for index, (stage, width) in enumerate(zip(STAGES, WIDTHS, strict=True)):
        if index:
            x = _pooled(walk, x)
        for number in stage:  # the activation is in place
            x = walk.conv(f"features.{number}", x, width)
        norms = walk.new((x.shape[0], 1, *x.shape[2:]), needs_grad=x.needs_grad)
        found.append(walk.product(x, norms))
    return found


def _pooled(walk: Walk, x: Array) -> Array:
    shape = (x.shape[0], x.shape[1], x.shape[2] // 2, x.shape[3] // 2)
    indices = walk.new(shape, item_bytes=_INDEX_BYTES)
    if x.needs_grad:
        walk.tape.keep(indices)
    return walk.new(shape, needs_grad=x.needs_grad)
