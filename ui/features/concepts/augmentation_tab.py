"""The Augmentation and the Text tab of a concept's editor: settings, and previews of what they do."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from functools import partial

from PIL import Image, ImageTk

from ui.features.concepts.preview import PreviewContent, PreviewModel, describe_changes, describe_use
from ui.features.concepts.window import Editing
from ui.widgets.canvas import DrawnCanvas
from ui.widgets.card import Card
from ui.widgets.controls import Button, Switch
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP, PAD, Theme
from ui.widgets.variables import FlagVar

_FOLLOW_SECONDS = 0.3  # while a value is typed
Corner = tuple[float, float]  # as shares of the width and the height


class PreviewCanvas(DrawnCanvas):
    """Call `show` with an image; `outline` are corners on it."""

    def __init__(self, master: tk.Misc, theme: Theme) -> None:
        super().__init__(master, theme, on="card", size_px=(160, 160))
        self.outline: tuple[Corner, ...] = ()
        self._image: Image.Image | None = None
        self._photo: ImageTk.PhotoImage | None = None
        self._message = ""
        self.apply_theme()

    def show(self, image: Image.Image | None, outline: Sequence[Corner] = (), *, message: str = "") -> None:
        """Show another image, or a message in its place."""
        self._image, self.outline, self._message = image, tuple(outline), message
        self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        self.delete("all")
        width, height = self.winfo_width(), self.winfo_height()
        if self._image is None or width <= 1:
            self._photo = None
            self.create_text(
                width / 2, height / 2, text=self._message, width=max(60, width - 20), justify="center",
                fill=self.theme.colour("faint"), font=self.theme.font("small"),
            )  # fmt: skip
            return
        factor = min(width / self._image.width, height / self._image.height)
        size = (max(1, int(self._image.width * factor)), max(1, int(self._image.height * factor)))
        method = Image.Resampling.NEAREST if factor >= 3 else Image.Resampling.BILINEAR
        self._photo = ImageTk.PhotoImage(self._image.resize(size, method, reducing_gap=2.0), master=self)
        left, top = (width - size[0]) / 2, (height - size[1]) / 2
        self.create_image(left, top, image=self._photo, anchor="nw")
        if self.outline:
            points = [c for x, y in self.outline for c in (left + x * size[0], top + y * size[1])]
            self.create_polygon(points, fill="", outline="black", width=self.theme.px(4), tags="outline")
            self.create_polygon(
                points, fill="", outline=self.theme.colour("accent"), width=self.theme.px(2), tags="outline"
            )


class AugmentationTab:
    """The original with its crop, and next to it the image and the caption that are trained."""

    def __init__(self, frame: Panel, editing: Editing) -> None:
        self.frame = frame
        self._editing = editing
        context, pad = editing.context, editing.context.theme.px(PAD)
        self.model = PreviewModel(context.pump.background, editing.scans, editing.thumbnails)
        self.is_augmented = FlagVar(master=frame, value=True)
        card = Card(frame, context.theme, "What the trainer sees")
        tk.Grid.grid_configure(card, row=0, column=1, sticky="nsew", padx=(0, pad), pady=(pad, 0))
        body = card.body
        body.columnconfigure((0, 1), weight=1, uniform="images")
        body.rowconfigure(1, weight=1)
        self._add_steps(body, pad)
        self.original = PreviewCanvas(body, context.theme)
        self.trained = PreviewCanvas(body, context.theme)
        self.original_text = Text(body, context.theme, role="small", colour="muted", on="card")
        self.trained_text = Text(body, context.theme, role="small", colour="muted", on="card")
        for column, (canvas, text) in enumerate(
            ((self.original, self.original_text), (self.trained, self.trained_text))
        ):
            canvas.grid(row=1, column=column, sticky="nsew", padx=(pad - 4, 0), pady=(GAP, 0))
            text.grid(row=2, column=column, sticky="w", padx=(pad - 4, 0), pady=(4, 0))
        self.changes = WrappedText(body, context.theme, role="small", on="card")
        self.changes.grid(row=3, column=0, columnspan=2, sticky="ew", padx=(pad - 4, 0), pady=(GAP, 0))
        self.caption = WrappedText(body, context.theme, on="card")
        self.caption.grid(row=4, column=0, columnspan=2, sticky="ew", padx=(pad - 4, 0), pady=(GAP, 0))
        self.model.changed.subscribe(self._show)

    def follow(self) -> None:
        """Show the images with the current settings."""
        pump = self._editing.context.pump
        pump.redraw_soon(self, self._follow, at_most_every_seconds=_FOLLOW_SECONDS)

    def close(self) -> None:
        """Cancel the work."""
        self._editing.context.pump.forget(self)
        self.model.close()

    def _add_steps(self, body: Panel, pad: int) -> None:
        theme = self._editing.context.theme
        row = Panel(body, theme, "card")
        row.grid(row=0, column=0, columnspan=2, sticky="ew", padx=(pad - 4, 0))
        self.buttons: dict[str, Button] = {}
        self.image_text = Text(row, theme, on="card")
        self.use_text = Text(row, theme, on="card")
        for kind, step, text in (
            ("image", self.model.step_image, self.image_text),
            ("use", self.model.step_use, self.use_text),
        ):
            self.buttons[f"{kind} before"] = Button(row, theme, "‹", partial(step, -1), on="card", width=30)
            self.buttons[f"{kind} next"] = Button(row, theme, "›", partial(step, 1), on="card", width=30)
            self.buttons[f"{kind} before"].pack(side="left")
            text.pack(side="left", padx=GAP)
            self.buttons[f"{kind} next"].pack(side="left", padx=(0, theme.px(PAD)))
        switch = Switch(
            row, theme, self.is_augmented, text="Augment",
            command=lambda: self.model.set_augmented(self.is_augmented.get()),
        )  # fmt: skip
        switch.pack(side="right")
        tips = self._editing.context.tips
        tips.attach(switch, lambda: "Show the image with its augmentations, or only resized and cropped")
        tips.attach(self.buttons["use next"], lambda: "The next use of this image in the run")
        tips.attach(self.buttons["image next"], lambda: "The next image of the concept")

    def _follow(self) -> None:
        if self.model.content is None and not self.model.message:
            self.original.show(None, message="Computing…")
        self.model.follow(self._editing.context.form.config, self._editing.number)

    def _show(self) -> None:
        content = self.model.content
        if content is None:
            self.original.show(None, message=self.model.message)
            self.trained.show(None)
            for text in (self.original_text, self.trained_text, self.changes, self.caption):
                text.set_text("")
            return
        seen = content.seen
        corners = [(x / seen.size.width_px, y / seen.size.height_px) for x, y in seen.corners]
        self.original.show(content.original, corners if seen.pixels is not None else ())
        self.trained.show(seen.pixels, message="A prompt has no image.")
        self.image_text.set_text(f"image {self.model.image + 1:,} of {self.model.num_images:,}")
        self.use_text.set_text(describe_use(content, self.model.use))
        self.original_text.set_text(f"{seen.path.name}, {seen.size}; the crop is outlined")
        mask = "; darkened: outside the mask" if seen.has_mask else ""
        self.trained_text.set_text(f"trained at {seen.bucket}{mask}")
        self.changes.set_text(describe_changes(content, is_augmented=self.model.is_augmented))
        self.caption.set_text(describe_caption(content))


def describe_caption(content: PreviewContent) -> str:
    """Return the caption that is trained, or why there is none."""
    if content.seen.caption:
        return f"Caption: {content.seen.caption}"
    return "The caption is dropped: the empty prompt is trained." if content.seen.is_dropped else "(no caption)"


_CAPTION_FOLLOW_SECONDS = 0.3
_MAX_CAPTIONS = 6


class TextTab:
    """The captions of an image as they are written, and as they are trained in its next uses."""

    def __init__(self, frame: Panel, editing: Editing) -> None:
        self.frame = frame
        self._editing = editing
        context, pad = editing.context, editing.context.theme.px(PAD)
        self.model = PreviewModel(context.pump.background, editing.scans, editing.thumbnails)
        card = Card(frame, context.theme, "Captions as they are trained")
        tk.Grid.grid_configure(card, row=0, column=1, sticky="nsew", padx=(0, pad), pady=(pad, 0))
        row = Panel(card.body, context.theme, "card")
        row.pack(fill="x", padx=(pad - 4, 0))
        Button(row, context.theme, "‹", lambda: self.model.step_image(-1), on="card", width=30).pack(side="left")
        self.image_text = Text(row, context.theme, on="card")
        self.image_text.pack(side="left", padx=GAP)
        self.next = Button(row, context.theme, "›", lambda: self.model.step_image(1), on="card", width=30)
        self.next.pack(side="left")
        self.written = WrappedText(card.body, context.theme, colour="muted", on="card")
        self.written.pack(fill="x", padx=(pad - 4, 0), pady=(pad // 2, 0))
        self.trained = WrappedText(card.body, context.theme, on="card")
        self.trained.pack(fill="x", padx=(pad - 4, 0), pady=(pad // 2, 0))
        self.model.changed.subscribe(self._show)

    def follow(self) -> None:
        """Show the captions with the current settings."""
        pump = self._editing.context.pump
        pump.redraw_soon(self, self._follow, at_most_every_seconds=_CAPTION_FOLLOW_SECONDS)

    def close(self) -> None:
        """Cancel the work."""
        self._editing.context.pump.forget(self)
        self.model.close()

    def _follow(self) -> None:
        self.model.follow(self._editing.context.form.config, self._editing.number)

    def _show(self) -> None:
        content = self.model.content
        if content is None:
            self.image_text.set_text("")
            self.written.set_text(self.model.message)
            self.trained.set_text("")
            return
        name = content.seen.path.name
        self.image_text.set_text(f"{self.model.image + 1:,} of {self.model.num_images:,}: {name}")
        caption_lines = [f"• {text}" for text in content.seen.captions[:_MAX_CAPTIONS]] or ["(no caption)"]
        more = len(content.seen.captions) - _MAX_CAPTIONS
        self.written.set_text("\n".join(["As written:", *caption_lines, *([f"and {more} more"] if more > 0 else [])]))
        trained = [f"{number + 1}.  {text or '(the empty prompt)'}" for number, text in enumerate(content.captions)]
        self.trained.set_text("\n".join(["In the run, use by use:", *trained]))
