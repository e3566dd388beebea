"""The tools above the large image: what the pointer does, the brush, undo, and the zoom."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Callable

from ui.context import Context
from ui.editors.captions.mask_canvas import MaskCanvas, MaskView, Tool
from ui.editors.captions.mask_document import BLACK, WHITE
from ui.theme import GAP
from ui.widgets.controls import Button, Choice
from ui.widgets.panel import Panel, Text
from ui.widgets.slider import Slider
from ui.widgets.variables import TextVar

_TOOLS: dict[Tool, tuple[str, str]] = {
    "move": ("Move", "Drag to move the image (V). The middle button always does; the wheel zooms."),
    "brush": ("Brush", "Draw white: trained (B). The right button draws black."),
    "eraser": ("Eraser", "Draw black: not trained, or with the unmasked weight (E). The right button draws white."),
    "fill": ("Fill", "Fill an area up to the next edge of the mask with white (F); the right button with black."),
}
_VIEWS: dict[str, str] = {"over": "Mask over the image", "mask": "Mask alone", "image": "Image alone"}
_MAX_SIZE_STEPS = 100


class ToolBar(Panel):
    """Two rows of tools for a canvas; `undo` and `redo` are those of the editor."""

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
        first, second = Panel(self, context.theme, "card"), Panel(self, context.theme, "card")
        first.pack(fill="x")
        second.pack(fill="x", pady=(context.theme.px(6), 0))
        for tool, (label, tip) in _TOOLS.items():
            button = self._add(first, tool, label, lambda tool=tool: self.choose(tool), tip)  # type: ignore[misc]
            self.tools[tool] = button
        self.size_text = Text(first, context.theme, role="small", colour="label", on="card", width=13)
        self.size_text.pack(side="left", padx=(GAP, 0))
        self.size_slider = Slider(first, context.theme, _MAX_SIZE_STEPS, self._set_size, on="card")
        self.size_slider.configure(width=90)
        self.size_slider.pack(side="left")
        context.tips.attach(
            self.size_slider, lambda: "Diameter of the brush in pixels of the image ([ and ], Shift+wheel)"
        )
        self.opacity_text = Text(first, context.theme, role="small", colour="label", on="card", width=12)
        self.opacity_text.pack(side="left", padx=(GAP, 0))
        self.opacity = Slider(first, context.theme, 20, self._set_opacity, on="card")
        self.opacity.configure(width=70)
        self.opacity.set(20)
        self.opacity.pack(side="left")
        context.tips.attach(self.opacity, lambda: "How much one stroke changes the mask: gray is trained in part")
        self._add(second, "undo", "Undo", undo, "Undo (Ctrl+Z)")
        self._add(second, "redo", "Redo", redo, "Redo (Ctrl+Shift+Z)")
        self._add(second, "black", "Clear", lambda: self._whole(BLACK), "Make the whole mask black")
        self._add(second, "white", "All white", lambda: self._whole(WHITE), "Make the whole mask white: all is trained")
        self._add(second, "invert", "Invert", self._invert, "Exchange white and black")
        for name, label, command, tip in (
            ("in", "+", lambda: canvas.zoom(1.25), "Zoom in (+)"),
            ("fit", "Fit", canvas.fit, "Show the whole image (0)"),
            ("out", "−", lambda: canvas.zoom(0.8), "Zoom out (-)"),
        ):
            self._add(second, name, label, command, tip, side="right")
        self.zoom_text = Text(second, context.theme, role="small", colour="muted", on="card", width=6, anchor="e")
        self.zoom_text.pack(side="right", padx=(0, GAP))
        self.view = TextVar(master=self, value="over")
        self.view_choice = Choice(second, context.theme, self.view, _VIEWS, width=150, command=self._show_view)
        self.view_choice.pack(side="right", padx=(GAP, GAP))
        context.tips.attach(self.view_choice, lambda: "What is shown (Ctrl+M changes it)")
        self.choose("move")
        self.refresh()

    def choose(self, tool: Tool) -> None:
        """Choose a tool."""
        if tool != "move" and self._canvas.mask_view == "image":
            self.view.set("over")
            self._canvas.set_view("over")
        self._canvas.set_tool(tool)
        for name, button in self.tools.items():
            button.restyle("primary" if name == tool else "plain")

    def next_view(self) -> None:
        """Show the mask over the image, then alone, then not."""
        names = list(_VIEWS)
        self.view.set(names[(names.index(self.view.get()) + 1) % len(names)])
        self._show_view(self.view.get())

    def refresh(self) -> None:
        """Show the state of the canvas and its mask."""
        canvas, mask = self._canvas, self._canvas.mask
        self.zoom_text.set_text(f"{canvas.viewport.zoom * 100:.0f} %" if canvas.image else "")
        self.size_text.set_text(f"Size {canvas.brush_px:.0f} px")
        self.size_slider.set(_step_of(canvas.brush_px))
        self.opacity_text.set_text(f"Opacity {canvas.opacity * 100:.0f} %")
        self.buttons["undo"].set_enabled(mask is not None and mask.can_undo)
        self.buttons["redo"].set_enabled(mask is not None and mask.can_redo)
        for name in ("black", "white", "invert"):
            self.buttons[name].set_enabled(mask is not None)

    def _add(
        self, row: Panel, name: str, label: str, command: Callable[[], object], tip: str, side: str = "left"
    ) -> Button:
        button = Button(row, self._context.theme, label, command, on="card", width=34)
        button.pack(side=side, padx=(0, 5) if side == "left" else (5, 0))
        self._context.tips.attach(button, lambda: tip)
        self.buttons[name] = button
        return button

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
