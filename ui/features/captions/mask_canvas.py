"""The large image with its mask over it: drawing, zoom and pan. Shows a `MaskDocument` through a `Viewport`."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from typing import Any, Literal

from PIL import Image, ImageTk

from modules.data.decode import colour_of
from modules.data.transforms.geometry import Box
from ui.features.captions.mask_document import BLACK, WHITE, MaskDocument
from ui.features.captions.strokes import Brush
from ui.features.captions.viewport import ScaledImage, Viewport, drawn_part, shade_mask
from ui.loop.pump import Pump
from ui.widgets.theme import Theme

Tool = Literal["move", "brush", "eraser", "fill"]
MaskView = Literal["over", "mask", "image"]
_TILE_PX = 256
_ZOOM_STEP = 1.2
_Key = tuple[int, int]  # column and row of a tile of the view


class MaskCanvas(tk.Canvas):
    """Draws with the left button, and with the opposite colour with the right one; the middle one and Move pan.

    The wheel zooms; with Shift it changes the size of the brush. `on_change()` is called after each step of the mask,
    `on_view()` when the zoom or the size of the brush changes.
    """

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        *,
        on_change: Callable[[], object],
        on_view: Callable[[], object],
    ) -> None:
        super().__init__(master, highlightthickness=0, borderwidth=0, width=theme.px(200), height=theme.px(150))
        self.theme = theme
        self.viewport = Viewport()
        self.tool: Tool = "move"
        self.mask_view: MaskView = "over"
        self.brush_px, self.opacity = 60.0, 1.0
        self.image: ScaledImage | None = None
        self.mask: MaskDocument | None = None
        self._pump, self._on_change, self._on_view = pump, on_change, on_view
        self._photos: dict[_Key, tuple[ImageTk.PhotoImage, int]] = {}
        self._bases: dict[_Key, Image.Image] = {}
        self._dirty: dict[_Key, None] = {}
        self._drag: tuple[int, int] | None = None
        self.is_drawing = False
        self._message = ""
        self.configure(takefocus=True)
        self.bind("<Configure>", lambda event: self._follow_size(event.width, event.height))
        for number in (1, 2, 3):
            self.bind(f"<Button-{number}>", self._on_press)
            self.bind(f"<B{number}-Motion>", self._on_move)
            self.bind(f"<ButtonRelease-{number}>", self._on_release)
        self.bind("<Motion>", self._show_brush)
        self.bind("<Leave>", lambda _e: self.delete("brush"))
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            self.bind(sequence, self._wheel)
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour("field"))
        if hasattr(self, "_bases"):
            self.redraw()

    def show(self, image: ScaledImage, mask: MaskDocument | None) -> None:
        """Show an image with its mask, fitted."""
        self.image, self.mask, self._message = image, mask, ""
        self.viewport.show(image.size)
        self.redraw()
        self._on_view()

    def show_message(self, text: str) -> None:
        """Show a text in place of an image."""
        self.image = self.mask = None
        self._message = text
        self.redraw()

    def destroy(self) -> None:
        """Also drop the photos, on the Tk thread."""
        self._pump.forget(self)
        self._photos.clear()
        super().destroy()

    # -- view

    def set_tool(self, tool: Tool) -> None:
        """Choose what the left button does."""
        self.tool = tool
        self.configure(cursor={"move": "fleur", "fill": "crosshair"}.get(tool, "none" if self.mask else ""))
        self.delete("brush")

    def set_view(self, view: MaskView) -> None:
        """Show the mask over the image, alone, or not at all."""
        self.mask_view = view
        self.redraw()

    def set_brush(self, size_px: float) -> None:
        """Set the diameter of the brush, in pixels of the image."""
        self.brush_px = min(2000.0, max(1.0, size_px))
        self._on_view()

    def zoom(self, factor: float, at: tuple[int, int] | None = None) -> None:
        """Zoom by a factor at a place, or in the middle."""
        x, y = at or (self.winfo_width() // 2, self.winfo_height() // 2)
        self.viewport.zoom_at(factor, x, y)
        self.redraw()
        self._on_view()

    def fit(self) -> None:
        """Show the whole image."""
        self.viewport.fit()
        self.redraw()
        self._on_view()

    def redraw(self) -> None:
        """Draw the whole view again, tile by tile."""
        self._bases.clear()
        self.delete("message")
        if self.image is None:
            self.delete("tile")
            self._photos.clear()
            self._dirty.clear()
            self.create_text(
                self.winfo_width() / 2, self.winfo_height() / 2, text=self._message, tags="message",
                width=max(100, self.winfo_width() - 40), justify="center", fill=self.theme.colour("faint"),
                font=self.theme.font("body"),
            )  # fmt: skip
            return
        self._draw_soon(Box(0, 0, self.winfo_width(), self.winfo_height()))

    def changed(self) -> None:
        """Report a step of the mask that was not drawn with the pointer."""
        self._on_change()

    def refresh(self, changed: Box | None) -> None:
        """Draw a part of the mask again, given in pixels of the image; None for nothing."""
        if changed is not None and self.image is not None:
            self._draw_soon(self.viewport.to_view(changed))

    def _draw_soon(self, box: Box) -> None:
        for row in range(box.top_px // _TILE_PX, -(-box.bottom_px // _TILE_PX)):
            for column in range(box.left_px // _TILE_PX, -(-box.right_px // _TILE_PX)):
                self._dirty[column, row] = None
        self._pump.work_through(self, self._draw_tiles())

    def _draw_tiles(self) -> Iterator[None]:
        while self._dirty:
            key = next(iter(self._dirty))
            del self._dirty[key]
            self._draw_tile(key)
            yield

    def _draw_tile(self, key: _Key) -> None:
        if self.image is None:
            return
        left, top = key[0] * _TILE_PX, key[1] * _TILE_PX
        box = Box(left, top, left + _TILE_PX, top + _TILE_PX)
        background = colour_of(self.theme.colour("field")) or (0, 0, 0)
        base = self._bases.get(key)
        if base is None:
            base = self._bases[key] = self.image.part(self.viewport, box, background)
        image = self._with_mask(base, box)
        photo_item = self._photos.get(key)
        if photo_item is None:
            photo = ImageTk.PhotoImage(image, master=self)
            self._photos[key] = photo, self.create_image(left, top, image=photo, anchor="nw", tags="tile")
            self.tag_lower("tile")
        else:
            photo_item[0].paste(image)

    def _with_mask(self, base: Image.Image, box: Box) -> Image.Image:
        mask = self.mask
        if mask is None or self.image is None or self.mask_view == "image":
            return base
        if not mask.exists and self.mask_view == "over":
            return base
        gray = drawn_part(Image.fromarray(mask.pixels), self.image.size, self.viewport, box, WHITE)
        if self.mask_view == "mask":
            return gray.convert("RGB")
        return shade_mask(base, gray, (28, 34, 96))

    # -- events

    def _follow_size(self, width: int, height: int) -> None:
        self.viewport.resize((width, height))
        for key, (_photo, item) in list(self._photos.items()):
            if key[0] * _TILE_PX >= width or key[1] * _TILE_PX >= height:
                self.delete(item)
                del self._photos[key]
        self.redraw()
        self._on_view()

    def _value(self, button: int) -> int:
        is_white = (self.tool != "eraser") == (button == 1)
        return WHITE if is_white else BLACK

    def _on_press(self, event: tk.Event[Any]) -> None:
        self.focus_set()
        if self.image is None:
            return
        button = int(event.num)
        if self.tool == "move" or button == 2 or self.mask is None:
            self._drag = (event.x, event.y)
            return
        at = self.viewport.to_image(event.x, event.y)
        if self.tool == "fill":
            self.refresh(self.mask.fill(at, self._value(button), self.opacity))
            self._on_change()
            return
        had_mask = self.mask.exists
        brush = Brush(self._value(button), self.brush_px / 2, self.opacity)
        self.is_drawing = True
        changed = self.mask.begin_stroke(brush, at)
        self.refresh(changed if had_mask else self.mask.box)

    def _on_move(self, event: tk.Event[Any]) -> None:
        if self._drag is not None:
            self.viewport.pan(event.x - self._drag[0], event.y - self._drag[1])
            self._drag = (event.x, event.y)
            self.redraw()
        elif self.is_drawing and self.mask is not None:
            self.refresh(self.mask.stroke_to(self.viewport.to_image(event.x, event.y)))
        self._show_brush(event)

    def _on_release(self, _event: object) -> None:
        self._drag = None
        if self.is_drawing and self.mask is not None:
            self.is_drawing = False
            self.mask.end_stroke()
            self._on_change()

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_up = event.num == 4 or event.delta > 0
        if int(event.state) & 1:  # Shift
            self.set_brush(self.brush_px * (1.15 if is_up else 1 / 1.15))
            self._show_brush(event)
        elif self.image is not None:
            self.zoom(_ZOOM_STEP if is_up else 1 / _ZOOM_STEP, (event.x, event.y))
            self._show_brush(event)
        return "break"

    def _show_brush(self, event: tk.Event[Any]) -> None:
        self.delete("brush")
        if self.mask is None or self.tool not in ("brush", "eraser"):
            return
        radius = self.brush_px / 2 * self.viewport.zoom
        for extra, colour in ((1, "black"), (0, "white")):
            around = radius + extra
            self.create_oval(
                event.x - around, event.y - around, event.x + around, event.y + around, outline=colour, tags="brush"
            )
