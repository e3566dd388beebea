"""The shapes and colours of the demo model, as plain geometry: no torch, no files.

The images are drawn with these functions, and the evaluator fits the same functions to generated images, so the two
cannot diverge. Coordinates: u to the right, v down, in units of the shape's radius, (0, 0) its centre.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Colour = tuple[int, int, int]

IMAGE_SIZE_PX = 64

# The colours a caption can name for shapes and grounds; far apart, so that the nearest colour is unambiguous.
COLOURS: Mapping[str, Colour] = MappingProxyType(
    {
        "red": (215, 35, 40),
        "orange": (245, 140, 25),
        "yellow": (250, 225, 50),
        "green": (40, 155, 65),
        "blue": (40, 75, 215),
        "purple": (145, 45, 165),
        "black": (20, 20, 20),
        "white": (245, 245, 245),
    }
)
# The colour of the new object that the `#demo` LoRA teaches; no caption of the base model names it.
PINK: Colour = (255, 120, 190)


def _circle(u: FloatArray, v: FloatArray) -> BoolArray:
    return np.hypot(u, v) <= 1.0


def _square(u: FloatArray, v: FloatArray) -> BoolArray:
    return np.maximum(np.abs(u), np.abs(v)) <= 0.86


def _triangle(u: FloatArray, v: FloatArray) -> BoolArray:
    return (v <= 0.8) & (np.abs(u) <= (v + 1.05) * 0.58)


def _cross(u: FloatArray, v: FloatArray) -> BoolArray:
    along, across = np.maximum(np.abs(u), np.abs(v)), np.minimum(np.abs(u), np.abs(v))
    return (along <= 1.0) & (across <= 0.32)


def _star(u: FloatArray, v: FloatArray) -> BoolArray:
    """Five points: the edge runs from an outer corner at 1.1 to an inner one at 0.48, in every tenth turn."""
    outer, inner, half_turn = 1.1, 0.48, np.pi / 5
    angle = np.abs((np.arctan2(u, -v) + half_turn) % (2 * half_turn) - half_turn)
    radius = np.hypot(u, v)
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    corner_x, corner_y = inner * np.cos(half_turn), inner * np.sin(half_turn)
    inside: BoolArray = (outer - x) * corner_y >= y * (outer - corner_x)
    return inside


def _heart(u: FloatArray, v: FloatArray) -> BoolArray:
    """Two discs side by side, and below them the wedge between their outer tangents."""
    side, below = np.abs(u) - 0.5, v + 0.4
    disc = side**2 + below**2 <= 0.5**2
    within_tangent = 0.8 * side + 0.6 * below <= 0.5
    past_touching_point = 0.8 * below - 0.6 * side >= 0.0
    return disc | (within_tangent & past_touching_point & (below >= 0.0))


def _ring(u: FloatArray, v: FloatArray) -> BoolArray:
    radius = np.hypot(u, v)
    return (radius <= 1.0) & (radius >= 0.5)


# The shapes that the base model is trained on.
SHAPES: Mapping[str, Callable[[FloatArray, FloatArray], BoolArray]] = MappingProxyType(
    {
        "circle": _circle,
        "square": _square,
        "triangle": _triangle,
        "cross": _cross,
        "star": _star,
        "heart": _heart,
    }
)
# The shapes that the evaluator recognises: those of the base model and that of the new object.
KNOWN_SHAPES: Mapping[str, Callable[[FloatArray, FloatArray], BoolArray]] = MappingProxyType({**SHAPES, "ring": _ring})


def coverage(
    shape: str,
    *,
    centre_px: tuple[float, float],
    radius_px: float,
    turn_rad: float = 0.0,
    size_px: int = IMAGE_SIZE_PX,
    samples: int = 4,
) -> FloatArray:
    """Return the share of each pixel that a shape covers, 0 to 1, float64 of shape (size_px, size_px).

    Antialiased with `samples` x `samples` points per pixel. `centre_px` is (x, y) from the top left corner.
    Raises KeyError for a shape that is not in KNOWN_SHAPES.
    """
    points_px = (np.arange(size_px * samples) + 0.5) / samples
    u = (points_px[None, :] - centre_px[0]) / radius_px
    v = (points_px[:, None] - centre_px[1]) / radius_px
    cosine, sine = np.cos(turn_rad), np.sin(turn_rad)
    inside = KNOWN_SHAPES[shape](cosine * u + sine * v, cosine * v - sine * u)
    covered_HW: FloatArray = inside.reshape(size_px, samples, size_px, samples).mean(axis=(1, 3))
    return covered_HW
