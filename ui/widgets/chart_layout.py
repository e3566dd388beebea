"""Where the parts of the chart are: its panes from top to bottom, and the entries of its legend in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ui.widgets.chart_model import PANES, Axis, Line, axis_of


@dataclass(frozen=True, slots=True)
class Pane:
    """A part of the chart with an axis of its own, and where it is, in pixels."""

    lines: tuple[Line, ...]
    axis: Axis
    top: int
    bottom: int

    def y(self, value: float) -> float:
        """Return the place of a value."""
        return self.bottom - self.axis.share(value) * (self.bottom - self.top)


def panes_of(
    lines: Sequence[Line], steps: tuple[float, float], *, is_log: bool, top: float, bottom: float, between: float
) -> tuple[Pane, ...]:
    """Return the panes of lines from `top` to `bottom`: the first is twice as high as each other one."""
    groups = [found for name in PANES if (found := tuple(line for line in lines if line.pane == name))]
    room = bottom - top - between * (len(groups) - 1)
    unit = room / (len(groups) + 1)
    panes = []
    for number, group in enumerate(groups):
        height = max(1.0, unit * (1 if number else 2) if len(groups) > 1 else room)
        panes.append(Pane(group, axis_of(group, steps, is_log=is_log), round(top), round(top + height)))
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
