"""The plots of a probe: their contents, which the window draws, and PNGs of them, drawn with Pillow."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from modules.system.atomic import write_bytes

_SIZE = (900, 460)
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 30, 56, 60
_BACK, _INK, _MUTED, _GRID = "#ffffff", "#1f1f22", "#66666f", "#e6e6ea"
_RAW, _LINE, _MARK = "#e0c09b", "#b1610f", "#3a6ea5"
_MAX_TICKS = 6

Scale = Callable[[float], float]  # from a value to a pixel


@dataclass(frozen=True, slots=True)
class Plot:
    """The contents of a plot: single values as dots, a line, and a marked place on the x axis with its words.

    With `is_log` the x axis is logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    dots: Sequence[float]
    line: Sequence[float]
    mark: float | None = None
    mark_words: str = ""
    is_log: bool = False


def batch_plot(sizes: Sequence[int], speeds: Sequence[float], fastest: int) -> Plot:
    """Return the plot of images per second by the size of a micro-batch, with the smallest of the fastest marked."""
    at = [float(size) for size in sizes]
    return Plot("Speed by batch size", "Batch size (images)", "Images per second", at, speeds, speeds, fastest,
                f"fastest: {fastest}")  # fmt: skip


def rate_plot(
    rates: Sequence[float], changes: Sequence[float], smoothed: Sequence[float], suggested: float | None
) -> Plot:
    """Return the plot of what training changes in the loss by learning rate, with the suggested rate marked."""
    words = f"steepest fall: {suggested:.1e}" if suggested else ""
    return Plot("Learning rate range test (Smith 2017)", "Learning rate", "Change of the loss by training",
                rates, changes, smoothed, suggested, words, is_log=True)  # fmt: skip


def y_range(plot: Plot) -> tuple[float, float]:
    """Return the range of the y axis: the line, zero and most dots decide it; a few outliers do not."""
    dots = sorted(y for y in plot.dots if math.isfinite(y))
    most = dots[len(dots) // 20 : len(dots) - len(dots) // 20]
    values = [y for y in (*plot.line, *most, 0.0) if math.isfinite(y)]
    low, high = min(values), max(values)
    spread = (high - low) or 1.0
    return (low - 0.15 * spread if low < 0 else low), high + 0.15 * spread


def write_plot(file: Path, plot: Plot) -> None:
    """Write a plot as a PNG."""
    image = Image.new("RGB", _SIZE, _BACK)
    draw = ImageDraw.Draw(image)
    heading, text = ImageFont.load_default(17), ImageFont.load_default(13)
    draw.text((_LEFT, 16), plot.title, _INK, heading)
    at_x, at_y, ticks_x, ticks_y = _scales(plot)
    bottom, right = _SIZE[1] - _BOTTOM, _SIZE[0] - _RIGHT
    for value in ticks_y:
        draw.line((_LEFT, at_y(value), right, at_y(value)), _GRID)
        draw.text((_LEFT - 8, at_y(value)), f"{value:.3g}", _MUTED, text, anchor="rm")
    for value in ticks_x:
        draw.line((at_x(value), _TOP, at_x(value), bottom), _GRID)
        draw.text((at_x(value), bottom + 8), f"{value:g}", _MUTED, text, anchor="mt")
    draw.text(((_LEFT + right) / 2, _SIZE[1] - 22), plot.x_label, _INK, text, anchor="mt")
    draw.text((12, _TOP - 18), plot.y_label, _INK, text)
    for x, y in zip(plot.x, plot.dots, strict=False):
        if math.isfinite(y):
            px, py = at_x(x), min(bottom, max(_TOP, at_y(y)))
            draw.ellipse((px - 2, py - 2, px + 2, py + 2), fill=_RAW)
    path = [(at_x(x), at_y(y)) for x, y in zip(plot.x, plot.line, strict=False) if math.isfinite(y)]
    if len(path) > 1:
        draw.line(path, _LINE, 3, joint="curve")
    if plot.mark is not None:
        draw.line((at_x(plot.mark), _TOP, at_x(plot.mark), bottom), _MARK, 2)
        is_right = at_x(plot.mark) > (_LEFT + right) / 2
        draw.text(
            (at_x(plot.mark) + (-8 if is_right else 8), _TOP + 4),
            plot.mark_words,
            _MARK,
            text,
            "rt" if is_right else "lt",
        )
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    write_bytes(file, buffer.getvalue())


def _scales(plot: Plot) -> tuple[Scale, Scale, list[float], list[float]]:
    """Return the functions from values to pixels, and the ticks."""
    low, high = y_range(plot)
    to = math.log10 if plot.is_log else float
    first, last = to(min(plot.x)), to(max(plot.x))
    width, height = _SIZE[0] - _LEFT - _RIGHT, _SIZE[1] - _TOP - _BOTTOM

    def at_x(value: float) -> float:
        return _LEFT + (to(value) - first) / ((last - first) or 1.0) * width

    def at_y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * height

    ticks_y = _ticks(low, high)
    if plot.is_log:
        ticks_x = [10.0**n for n in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)]
    else:
        ticks_x = list(plot.x) if len(plot.x) <= 2 * _MAX_TICKS else _ticks(first, last)
    return at_x, at_y, ticks_x, ticks_y


def _ticks(low: float, high: float) -> list[float]:
    """Return round values between two bounds."""
    step = 10 ** math.floor(math.log10((high - low) / _MAX_TICKS))
    step *= next(n for n in (1, 2, 5, 10) if (high - low) / (step * n) <= _MAX_TICKS)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
