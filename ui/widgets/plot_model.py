"""The contents of a plot and its geometry: lines, bars and points, their axes, panes and legend rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ui.loop.series import Series
from ui.widgets.plot_axes import MARGIN, Axis, padded_axis

_OUTLIER_SHARE = 0.02


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
        factor = (high / low) ** MARGIN if high > low else 2.0
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
