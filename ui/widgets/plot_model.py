"""The contents of a plot and its geometry: lines, bars and points, axes and ticks, panes, zoom and legend rows."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from ui.loop.series import Series

_MARGIN = 0.08
_OUTLIER_SHARE = 0.02
_MIN_STEPS = 2.0


# -- contents


@dataclass(frozen=True, slots=True)
class Style:
    """The drawing of a line; without a width only its dots are drawn.

    `cuts_outliers`: a few extreme values do not decide the range of the axis. `is_sparse`: the line has values only at
    its own steps, not between them.
    """

    width_px: int = 1
    dot_px: int = 0
    is_dashed: bool = False
    cuts_outliers: bool = False
    is_sparse: bool = False


StyleName = Literal["line", "thin", "dashed", "dots", "marked", "marked_dashed", "scattered"]
STYLES: Mapping[StyleName, Style] = {
    "line": Style(2),
    "thin": Style(cuts_outliers=True),
    "dashed": Style(is_dashed=True, is_sparse=True),
    "dots": Style(dot_px=3, is_sparse=True),
    "marked": Style(2, dot_px=3),
    "marked_dashed": Style(2, dot_px=3, is_dashed=True),
    "scattered": Style(0, dot_px=2),
}


@dataclass(frozen=True, slots=True)
class Line:
    """Values by step: the curve that the line belongs to, its label in the legend, its pane, and how it is drawn.

    `token` is its colour. `is_of_run` is false for the line of an earlier run. A line `on_right` has the right scale.
    """

    curve: str
    label: str
    pane: str
    series: Series
    token: str
    style: StyleName = "line"
    is_of_run: bool = True
    on_right: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its label and its value in words; `is_marked` draws it in the colour of a warning."""

    label: str
    value: float
    words: str = ""
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """A point that is drawn larger the more things it stands for, with a description."""

    x: float
    y: float
    number: int
    words: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the readout: its title, and names with numbers."""

    title: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Readout:
    """The values at a place of the x axis."""

    x: float
    heading: str
    columns: Sequence[Column]


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring around a value of the first pane, with its name in the legend."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at a place of the x axis, and its words."""

    x: float
    words: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The margins around the panes in unscaled pixels, and what is written there.

    Without `top_px` the legend is above the panes, as high as it needs. The x axis has whole steps, any values with
    vertical lines, the two texts of `Figure.ends` at its ends, or nothing.
    """

    left_px: int
    right_px: int
    bottom_px: int
    top_px: int | None = None
    x_labels: Literal["steps", "values", "ends", "none"] = "none"
    has_y_labels: bool = False


STEPS = Frame(52, 12, 26, x_labels="steps", has_y_labels=True)
TWO_SCALES = Frame(52, 52, 26, x_labels="steps", has_y_labels=True)
TITLED = Frame(60, 16, 44, 58, x_labels="values", has_y_labels=True)
BARS = Frame(0, 0, 18, 6, x_labels="ends")
POINTS = Frame(40, 10, 20, 18)
SMALL = Frame(2, 2, 4, 18)


# -- axes


def ticks(low: float, high: float, max_count: int) -> list[float]:
    """Return round numbers within a range: multiples of 1, 2 or 5 times a power of ten.

    At most `max_count` of them, or up to five if only one would be left.
    """
    if not high > low or max_count < 1:
        return []
    raw = (high - low) / max_count
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [m * power for m in (10, 5, 2, 1, 0.5, 0.2, 0.1)]
    wide = next(n for n in range(3, -1, -1) if steps[n] >= raw * (1 - 1e-9))
    choices = [_multiples(step, low, high) for step in steps[wide:]]
    return next((choice for choice in choices if len(choice) > 1), choices[0])  # a single tick shows no scale


def log_ticks(low: float, high: float, max_count: int) -> list[float]:
    """Return round numbers within a range of positive values for a logarithmic scale: powers of ten, and 2 and 5 times
    them where there is room. A narrow range has the ticks of a linear scale.
    """
    if not 0 < low < high or max_count < 1:
        return []
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        values = [float(f"{digit}e{power}") for power in powers for digit in digits]
        values = [value for value in values if low <= value <= high]
        if 2 <= len(values) <= max(2, max_count):
            return values
    return values[:: -(-len(values) // max_count)] if len(values) > 1 else ticks(low, high, max_count)


def _multiples(step: float, low: float, high: float) -> list[float]:
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def tick_label(value: float) -> str:
    """Return a short number for a tick: 12k for thousands of steps, no trailing zeros for losses."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


@dataclass(frozen=True, slots=True)
class Axis:
    """The range of an axis, and whether it is logarithmic."""

    low: float
    high: float
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return the place of a value, from 0 to 1 inside the range; values outside are put on the edge."""
        if self.is_log:
            value = max(value, self.low)
            share: float = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def value(self, share: float) -> float:
        """Return the value at a place, which may be outside the range."""
        if self.is_log:
            return self.low * (self.high / self.low) ** share
        return self.low + share * (self.high - self.low)

    def ticks(self, max_count: int) -> list[float]:
        """Return the values to label."""
        return log_ticks(self.low, self.high, max_count) if self.is_log else ticks(self.low, self.high, max_count)


def padded_axis(values: Sequence[float]) -> Axis:
    """Return the axis of one or more values, with a margin at both ends."""
    low, high = min(values), max(values)
    margin = (high - low) * _MARGIN or abs(high) * _MARGIN or 0.5
    return Axis(low - margin, high + margin)


def axis_of(lines: Sequence[Line], steps: tuple[float, float], *, is_log: bool) -> Axis:
    """Return the axis of a pane for the visible part of its lines, without the outliers of raw values.

    A pane with a value that is not positive is never logarithmic.
    """
    ranges = []
    for line in lines:
        values = line.series.range(*steps, cut=_OUTLIER_SHARE if STYLES[line.style].cuts_outliers else 0.0)
        ranges += [values] if values else []
    if not ranges:
        return Axis(0.0, 1.0)
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    if is_log and low > 0:
        factor = (high / low) ** _MARGIN if high > low else 2.0
        return Axis(low / factor, high * factor, is_log=True)
    axis = padded_axis((low, high))
    return Axis(max(0.0, axis.low), axis.high) if low >= 0 else axis


def extent_of(lines: Iterable[Line]) -> tuple[float, float]:
    """Return the first and the last step of lines; one step apart at least."""
    extents = [line.series.extent for line in lines]
    low = min((e[0] for e in extents if e), default=0.0)
    return low, max(low + 1, *(e[1] for e in extents if e)) if any(extents) else low + 1


# -- the figure


@dataclass(frozen=True, slots=True)
class Figure:
    """All that a plot shows. Axes that are not given follow from the lines.

    `readout` returns the values at a place of the x axis; the values within a distance of it may be preferred. Bars are
    columns, or with `has_rows` rows with their labels and words. `reference` is a dashed line to compare with. With
    `reads_at_top` the readout is at the top edge instead of the first pane.
    """

    frame: Frame = STEPS
    lines: tuple[Line, ...] = ()
    bars: Sequence[Bar] = ()
    points: Sequence[Point] = ()
    panes: Sequence[str] = ("",)
    x: Axis | None = None
    y: Axis | None = None
    x_ticks: Sequence[float] = ()
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    ends: tuple[str, str] = ("", "")
    has_rows: bool = False
    reference: float | None = None
    mark: Mark | None = None
    ring: Ring | None = None
    readout: Callable[[float, float], Readout | None] | None = None
    reads_at_top: bool = False
    empty_text: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not (self.lines or self.bars or self.points)


@dataclass(frozen=True, slots=True)
class Pane:
    """A part of the plot with axes of its own, and its place in pixels."""

    lines: tuple[Line, ...]
    axis: Axis
    top: int
    bottom: int
    right_axis: Axis | None = None

    def y(self, value: float, *, on_right: bool = False) -> float:
        """Return the place of a value."""
        axis = self.right_axis if on_right and self.right_axis else self.axis
        return self.bottom - axis.share(value) * (self.bottom - self.top)


def panes_of(
    figure: Figure, steps: tuple[float, float], *, is_log: bool, top: float, bottom: float, between: float
) -> tuple[Pane, ...]:
    """Return the panes of a figure from `top` to `bottom`: the first is twice as high as each other one."""
    if figure.y is not None or not figure.lines:
        y_axis = figure.y or Axis(0.0, max((bar.value for bar in figure.bars), default=0.0) or 1.0)
        return (Pane(figure.lines, y_axis, round(top), max(round(top) + 1, round(bottom))),)
    groups = [group for name in figure.panes if (group := tuple(li for li in figure.lines if li.pane == name))]
    room = bottom - top - between * (len(groups) - 1)
    unit = room / (len(groups) + 1)
    panes = []
    for number, group in enumerate(groups):
        height = max(1.0, unit * (1 if number else 2) if len(groups) > 1 else room)
        left, right = ([line for line in group if line.on_right is side] for side in (False, True))
        axis = axis_of(left, steps, is_log=is_log)
        right_axis = axis_of(right, steps, is_log=is_log) if right else None
        panes.append(Pane(group, axis, round(top), round(top + height), right_axis))
        top += height + between
    return tuple(panes)


def in_rows(widths: Sequence[int], left: int, right: int) -> list[tuple[int, int]]:
    """Return the left edge and the row of items of some widths, in as many rows as they need."""
    places, x, row = [], left, 0
    for width in widths:
        if x > left and x + width > right:
            x, row = left, row + 1
        places.append((x, row))
        x += width
    return places


def clip_ends(points: Sequence[tuple[float, float]], low: float, high: float) -> list[tuple[float, float]]:
    """Return a line cut off at both ends of a range; only its first and last point can be outside."""
    clipped = list(points)
    for end, neighbour, edge in ((0, 1, low), (-1, -2, high)):
        (step, value), (next_step, next_value) = clipped[end], clipped[neighbour]
        if (step < edge if end == 0 else step > edge) and next_step != step:
            clipped[end] = (edge, value + (next_value - value) * (edge - step) / (next_step - step))
    return clipped


# -- zoom and pointer


@dataclass(frozen=True, slots=True)
class Zoom:
    """The range of steps that is shown; None for the whole run, which grows with it."""

    steps: tuple[float, float] | None = None

    def over(self, extent: tuple[float, float]) -> tuple[float, float]:
        """Return the range to draw."""
        return self.steps or extent

    def at(self, step: float, factor: float, extent: tuple[float, float]) -> Zoom:
        """Return the zoom with the range `factor` times as wide, and `step` where it is."""
        low, high = self.over(extent)
        return self._to(step - (step - low) * factor, step + (high - step) * factor, extent)

    def to(self, one: float, other: float, extent: tuple[float, float]) -> Zoom:
        """Return the zoom to a range, in either direction."""
        return self._to(min(one, other), max(one, other), extent)

    def moved(self, by: float, extent: tuple[float, float]) -> Zoom:
        """Return the zoom moved by so many steps, at most to the end of the run."""
        if self.steps is None:
            return self
        low, high = self.steps
        by = min(max(by, extent[0] - low), extent[1] - high) if high - low < extent[1] - extent[0] else 0.0
        return Zoom((low + by, high + by))

    def _to(self, low: float, high: float, extent: tuple[float, float]) -> Zoom:
        if high - low < _MIN_STEPS:
            middle = (low + high) / 2
            low, high = middle - _MIN_STEPS / 2, middle + _MIN_STEPS / 2
        low, high = max(extent[0], low), min(extent[1], high)
        return Zoom() if (low, high) == extent or low >= high else Zoom((low, high))


class AtStep(Protocol):
    """A measurement after a step."""

    @property
    def step(self) -> int:
        """The step."""
        ...


P = TypeVar("P", bound=AtStep)


def nearest(points: Sequence[P], step: float) -> P | None:
    """Return the point with the nearest step; points are in the order of their steps."""
    if not points:
        return None
    index = bisect_left(points, step, key=lambda p: p.step)
    around = points[max(0, index - 1) : index + 1]
    return min(around, key=lambda p: abs(p.step - step))
