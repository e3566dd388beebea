"""The tools above the large image: what the pointer does, the brush, undo, and the zoom."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Callable
from functools import partial

from ui.features.captions.mask_canvas import MaskCanvas, MaskView, Tool
from ui.features.captions.mask_document import BLACK, WHITE
from ui.forms.context import Context
from ui.widgets.controls import Button, Choice, Slider
from ui.widgets.panel import Flow, Panel, Text
from ui.widgets.variables import TextVar

_TOOLS: dict[Tool, tuple[str, str]] = {
    "move": ("Move", "Drag to move the image (V). The middle button always does; the wheel zooms."),
    "brush": ("Brush", "Draw white: trained (B). The right button draws black."),
    "eraser": ("Eraser", "Draw black: not trained, or with the unmasked weight (E). The right button draws white."),
    "fill": ("Fill", "Fill an area up to the next edge of the mask with white (F); the right button with black."),
}
_VIEWS: dict[str, str] = {"over": "Image, mask", "mask": "Mask", "image": "Image"}
_VIEW_TIP = "The mask over the image, or one of them alone (Ctrl+M changes it)"
_MAX_SIZE_STEPS = 100
_SIZE_TIP = "Diameter of the brush in pixels of the image ([ and ], Shift+wheel)"
_OPACITY_TIP = "How much one stroke changes the mask, in percent: gray is trained in part"


class ToolBar(Panel):
    """The tools of a canvas; `undo` and `redo` are the editor's."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        canvas: MaskCanvas,
        *,
        undo: Callable[[], object],
        redo: Callable[[], object],
    ) -> None:
        super().__init__(master, context.theme, "card")
        self._context, self._canvas = context, canvas
        self.tools: dict[Tool, Button] = {}
        self.buttons: dict[str, Button] = {}
        self._row = Flow(self, context.theme)
        self._row.pack(fill="x")
        for tool, (label, tip) in _TOOLS.items():
            self.tools[tool] = self._add(tool, label, partial(self.choose, tool), tip)
        self.size_text, self.size_slider = self._add_slider("Size 1000", _MAX_SIZE_STEPS, self._set_size, _SIZE_TIP)
        self.opacity_text, self.opacity = self._add_slider("Opacity 100", 20, self._set_opacity, _OPACITY_TIP)
        self.opacity.set(20)
        self._add("undo", "Undo", undo, "Undo (Ctrl+Z)")
        self._add("redo", "Redo", redo, "Redo (Ctrl+Shift+Z)", joined=True)
        self._add("black", "Clear", partial(self._whole, BLACK), "Make the whole mask black")
        self._add("white", "All white", partial(self._whole, WHITE), "Make the whole mask white: all is trained")
        self._add("invert", "Invert", self._invert, "Exchange white and black")
        self.view = TextVar(master=self, value="over")
        self.view_choice = Choice(self._row, context.theme, self.view, _VIEWS, width=116, command=self._show_view)
        self._row.add(self.view_choice)
        context.tips.attach(self.view_choice, lambda: _VIEW_TIP)
        self._add("out", "−", lambda: canvas.zoom(0.8), "Zoom out (-)")
        self._add("fit", "Fit", canvas.fit, "Show the whole image (0)", joined=True)
        self._add("in", "+", lambda: canvas.zoom(1.25), "Zoom in (+)", joined=True)
        self.zoom_text = Text(self._row, context.theme, role="small", colour="muted", on="card", width=6)
        self._row.add(self.zoom_text, joined=True)
        self.choose("move")
        self.refresh()

    def choose(self, tool: Tool) -> None:
        """Choose a tool."""
        if tool != "move" and self._canvas.mask_view == "image":
            self.view.set("over")
            self._canvas.set_view("over")
        self._canvas.set_tool(tool)
        for name, button in self.tools.items():
            button.restyle("chosen" if name == tool else "plain")

    def next_view(self) -> None:
        """Show the mask over the image, then alone, then not."""
        names = list(_VIEWS)
        self.view.set(names[(names.index(self.view.get()) + 1) % len(names)])
        self._show_view(self.view.get())

    def refresh(self) -> None:
        """Show the state of the canvas and its mask."""
        canvas, mask = self._canvas, self._canvas.mask
        self.zoom_text.set_text(f"{canvas.viewport.zoom * 100:.0f} %" if canvas.image else "")
        self.size_text.set_text(f"Size {canvas.brush_px:.0f}")
        self.size_slider.set(_step_of(canvas.brush_px))
        self.opacity_text.set_text(f"Opacity {canvas.opacity * 100:.0f}")
        self.buttons["undo"].set_enabled(mask is not None and mask.can_undo)
        self.buttons["redo"].set_enabled(mask is not None and mask.can_redo)
        for name in ("black", "white", "invert"):
            self.buttons[name].set_enabled(mask is not None)

    def _add(self, name: str, label: str, command: Callable[[], object], tip: str, *, joined: bool = False) -> Button:
        button = Button(self._row, self._context.theme, label, command, on="card", width=34)
        self._row.add(button, joined=joined)
        self._context.tips.attach(button, lambda: tip)
        self.buttons[name] = button
        return button

    def _add_slider(self, longest: str, last: int, moved: Callable[[int], object], tip: str) -> tuple[Text, Slider]:
        theme = self._context.theme
        text = Text(self._row, theme, role="small", colour="label", on="card", width=len(longest))
        slider = Slider(self._row, theme, last, moved, on="card")
        slider.configure(width=56)
        self._row.add(text)
        self._row.add(slider, joined=True)
        self._context.tips.attach(slider, lambda: tip)
        return text, slider

    def _set_size(self, step: int) -> None:
        self._canvas.set_brush(_size_of(step))

    def _set_opacity(self, step: int) -> None:
        self._canvas.opacity = max(1, step) / 20
        self.refresh()

    def _show_view(self, name: str) -> None:
        views: dict[str, MaskView] = {"over": "over", "mask": "mask", "image": "image"}
        self._canvas.set_view(views[name])

    def _whole(self, value: int) -> None:
        if self._canvas.mask is not None:
            self._canvas.refresh(self._canvas.mask.set_all(value))
            self._canvas.changed()

    def _invert(self) -> None:
        if self._canvas.mask is not None:
            self._canvas.refresh(self._canvas.mask.invert())
            self._canvas.changed()


def _size_of(step: int) -> float:
    """Return the diameter of a step of the slider: fine for small brushes."""
    return 1 + 999 * (step / _MAX_SIZE_STEPS) ** 2


def _step_of(size_px: float) -> int:
    return round(_MAX_SIZE_STEPS * math.sqrt(min(1.0, max(0.0, (size_px - 1) / 999))))
