"""Zooming in a plot with the mouse."""

from __future__ import annotations

import tkinter as tk
from typing import TYPE_CHECKING, Any

from ui.widgets.plot_axes import Zoom

if TYPE_CHECKING:
    from ui.widgets.plot import Plot

_DRAG_PX = 5
_ZOOM = 0.8


class MouseZoom:
    """The wheel zooms at the pointer, a drag to the range that it covers, a drag with Shift moves, and a double click
    shows everything.
    """

    def __init__(self, plot: Plot) -> None:
        self._plot = plot
        self._grabbed: tuple[int, Zoom] | None = None
        plot.bind("<Button-1>", self._grab)
        plot.bind("<B1-Motion>", self._drag)
        plot.bind("<ButtonRelease-1>", self._release)
        plot.bind("<Double-Button-1>", lambda _e: plot.set_zoom(Zoom()))
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            plot.bind(sequence, self._wheel)

    @property
    def is_dragging(self) -> bool:
        """Whether the button is held down on the plot."""
        return self._grabbed is not None

    def _wheel(self, event: tk.Event[Any]) -> str:
        plot = self._plot
        if plot.panes:
            is_in = event.num == 4 or event.delta > 0
            plot.set_zoom(plot.zoom.at(plot.step_at(event.x), _ZOOM if is_in else 1 / _ZOOM, plot.extent))
        return "break"

    def _grab(self, event: tk.Event[Any]) -> None:
        self._grabbed = (event.x, self._plot.zoom) if self._plot.panes else None

    def _drag(self, event: tk.Event[Any]) -> None:
        if self._grabbed is None:
            return
        (start, zoom), plot = self._grabbed, self._plot
        plot.delete("pointer")
        if _is_shifted(event):
            plot.set_zoom(zoom.move(plot.step_at(start) - plot.step_at(event.x), plot.extent))
        else:
            top, bottom = plot.panes[0].top, plot.panes[-1].bottom
            plot.create_rectangle(
                start, top, event.x, bottom, outline=plot.theme.colour("accent"), stipple="gray12",
                fill=plot.theme.colour("accent"), tags="pointer",
            )  # fmt: skip

    def _release(self, event: tk.Event[Any]) -> None:
        if self._grabbed is None:
            return
        (start, _), plot = self._grabbed, self._plot
        self._grabbed = None
        plot.delete("pointer")
        if abs(event.x - start) > plot.theme.px(_DRAG_PX) and not _is_shifted(event):
            plot.set_zoom(plot.zoom.to(plot.step_at(start), plot.step_at(event.x), plot.extent))


def _is_shifted(event: tk.Event[Any]) -> bool:
    return isinstance(event.state, int) and bool(event.state & 1)
