"""The window of the caption and mask editor: the list of images, the large image with its mask, and the caption."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from modules.config.records import why_unused
from modules.data.concept import Concept
from modules.system.paths import session_file
from ui.features.captions.annotate_window import AnnotateWindow
from ui.features.captions.caption_side import CaptionSide
from ui.features.captions.image_set import Source, source_of
from ui.features.captions.list_panel import OTHER_FOLDER, ListPanel
from ui.features.captions.mask_canvas import MaskCanvas
from ui.features.captions.model import CaptionModel
from ui.features.captions.replace_window import ReplaceWindow
from ui.features.captions.tool_bar import ToolBar
from ui.forms.context import Context
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel
from ui.widgets.theme import GAP, PAD

_SIZE = (1280, 820)
_SIDES = ((216, 0.17, 320), (286, 0.23, 430))  # of the list and the caption: least px, share of the width, most px
_MASKED_TRAINING = "masks.enabled"
_MASKS_UNUSED = "Masked training is off, so masks are not used."
_RULE = "Saved when you open another image or close the window (Ctrl+S: now)."


class CaptionEditor(Window):
    """Edits the captions and masks of a source; `sources` are the others that can be chosen."""

    def __init__(self, context: Context, sources: Mapping[str, Source], chosen: str) -> None:
        super().__init__(context.root, context.theme, "Captions and masks")
        self.model = CaptionModel(sources, chosen, context.pump.background, context.interaction)
        self.replace_window: ReplaceWindow | None = None
        self.annotate_window: AnnotateWindow | None = None
        self._context = context
        self._build()
        self._follow_model()
        bind_keys(self)
        self.bind("<FocusIn>", self._on_focus, add="+")
        self.appear(*_SIZE)
        self.caption_panel.focus_text()  # most who open it come to write
        self.model.read()

    # -- building

    def _build(self) -> None:
        theme, px = self.theme, self.theme.px
        pad = px(PAD)
        self.columnconfigure(1, weight=1)
        self.rowconfigure(0, weight=1)
        cards = [Panel(self, theme, "card") for _ in range(3)]
        for column, card in enumerate(cards):
            sides = (0 if column else pad, pad if column == 2 else GAP)
            card.grid(row=0, column=column, sticky="nsew", padx=sides, pady=pad)
        self._sides = (cards[0], cards[2])
        for card in self._sides:
            card.pack_propagate(False)
        self._share_width(px(_SIZE[0]))
        self.bind("<Configure>", self._follow_size)
        left, middle, right = (Panel(card, theme, "card") for card in cards)
        for inner in (left, middle, right):
            inner.pack(fill="both", expand=True, padx=px(10), pady=px(10))
        model = self.model
        self.list_panel = ListPanel(
            left, self._context, model.session, sources=self._titles(), on_source=self._choose_source,
            on_select=model.select, on_choose=model.go_to,
        )  # fmt: skip
        self.list_panel.source.set(model.source_name)
        self.list_panel.pack(fill="both", expand=True)
        self.canvas = MaskCanvas(middle, theme, self._context.pump, on_change=model.changed, on_view=self._follow_view)
        self.tool_bar = ToolBar(middle, self._context, self.canvas, undo=model.undo_mask, redo=model.redo_mask)
        self.tool_bar.pack(fill="x", pady=(0, px(8)))
        self.canvas.pack(fill="both", expand=True)
        self._build_caption(right)

    def _follow_size(self, event: tk.Event[Any]) -> None:
        if event.widget is self:
            self._share_width(event.width)

    def _share_width(self, width: int) -> None:
        """Give the lists at the sides a part of the width."""
        for card, (least, share, most) in zip(self._sides, _SIDES, strict=True):
            width_px = round(min(self.theme.px(most), max(self.theme.px(least), share * width)))
            if int(card.cget("width")) != width_px:
                card.configure(width=width_px)

    def _build_caption(self, master: Panel) -> None:
        self.side = CaptionSide(
            master, self._context, on_edit=self.model.edit_caption, counts=lambda: self.model.session.set.counts,
            commands={
                "previous": lambda: self._step_and_write(-1), "next": lambda: self._step_and_write(1),
                "revert": self.model.revert, "replace": self.open_replace, "auto_captions": self.open_captions,
                "auto_masks": self.open_masks, "use_files": self.use_files,
                "use_masks": self.use_masks,
            },
        )  # fmt: skip
        self.side.pack(fill="both", expand=True)
        self.caption_panel, self.buttons = self.side.caption, self.side.buttons
        self.note, self.status = self.side.note, self.side.status

    # -- following the model

    def _follow_model(self) -> None:
        model = self.model
        model.sources_changed.subscribe(self._show_sources)
        model.list_changed.subscribe(lambda: self.list_panel.refresh(is_reading=model.is_reading))
        model.image_opened.subscribe(lambda: self.list_panel.list.choose(model.session.index))
        model.image_changed.subscribe(self._show_image)
        model.caption_changed.subscribe(self._show_caption)
        model.mask_changed.subscribe(self.canvas.refresh)
        model.saved.subscribe(self.list_panel.show_count)
        model.changed.subscribe(self._refresh)

    def _titles(self) -> dict[str, str]:
        return {name: source.title for name, source in self.model.sources.items()}

    def _show_sources(self) -> None:
        self.list_panel.source_choice.set_choices({**self._titles(), OTHER_FOLDER: "Another folder…"})
        self.list_panel.source.set(self.model.source_name)

    def _show_image(self) -> None:
        image = self.model.image
        if image is None:
            self.canvas.show_message(self.model.message)
            return
        self.canvas.show(image, self.model.session.mask)
        self.canvas.set_tool(self.canvas.tool)
        width, height = image.size
        self.side.facts.set_text(f"{width} × {height}")

    def _show_caption(self, keeps_undo: bool) -> None:
        session, caption = self.model.session, self.model.session.caption
        self.side.show_name(session.current.name if session.current else "")
        if not keeps_undo:
            self.side.facts.set_text("")
        self.caption_panel.show(
            caption.text if caption is not None else "",
            is_editable=caption is not None and caption.file.is_editable,
            problem=session.caption_problem,
            keeps_undo=keeps_undo,
        )

    def _follow_view(self) -> None:
        if hasattr(self, "tool_bar"):  # which is built after the canvas, and sets its tool
            self.tool_bar.refresh()

    def _refresh(self) -> None:
        session, caption = self.model.session, self.model.session.caption
        if self.model.image is None:
            self.canvas.mask = None  # no drawing on the mask of the last image
        are_masks_unused = self._are_masks_unused()
        self.note.set_text(f"{self.model.note} {_MASKS_UNUSED if are_masks_unused else ''}".strip())
        self.side.offer("use_files", is_offered=session.set.source.has_other_captions)
        self.side.offer("use_masks", is_offered=are_masks_unused)
        self.status.set_text(f"Edited. {_RULE}" if session.is_edited else "")
        self.buttons["revert"].set_enabled(caption is not None and caption.differs_from_first)
        self.tool_bar.refresh()
        self.list_panel.list.draw_soon()

    # -- what the user does

    def save(self) -> bool:
        """Save now; return whether all is saved."""
        is_saved = self.model.settle()
        if is_saved:
            self.status.set_text("Saved.")
        return is_saved

    def use_files(self) -> None:
        """Let the concept take its captions from the text files that are edited; this can be undone in the window."""
        name, form = self.model.source_name, self._context.form
        path = f"concepts.{name.removeprefix('concept ')}"
        concept = form.value(path) if form.has(path) else None
        if not isinstance(concept, Concept) or source_of(concept) != self.model.session.set.source:
            self._context.notify("The concept has changed: open its captions again.")
            return
        form.edit(f"{path}.caption_source", "text_file")
        image = self.model.session.current
        self.model.open_concepts({**self.model.sources, name: source_of(form.value(path))}, name)
        if image is not None:
            self.model.show_image(image)

    def use_masks(self) -> None:
        """Switch masked training on; this can be undone in the window."""
        self._context.form.edit(_MASKED_TRAINING, True)
        self._refresh()

    def _are_masks_unused(self) -> bool:
        """Return whether the open image of a concept has a mask, and masked training is off."""
        session, form = self.model.session, self._context.form
        has_mask = session.current in session.set.masked or (session.mask is not None and session.mask.is_edited)
        is_off = not form.value(_MASKED_TRAINING) and not why_unused(form.config, _MASKED_TRAINING)
        return has_mask and is_off and self.model.source_name.startswith("concept ")

    def _choose_source(self, name: str) -> None:
        model = self.model
        if name != OTHER_FOLDER:
            if name != model.source_name:
                model.open_source(name)
            return
        self.list_panel.source.set(model.source_name)
        start = model.session.set.source.folder
        folder = self._context.interaction.ask_folder("Edit the captions of a folder", start)
        if folder is not None and self.winfo_exists():
            model.open_folder(folder)

    def _step_and_write(self, by: int) -> None:
        """Open another image by a button, ready for what the user does: writing a caption, or drawing a mask."""
        self.model.step(by)
        if self.canvas.tool == "move":
            self.caption_panel.focus_text()
        else:
            self.canvas.focus_set()

    def _on_focus(self, event: tk.Event[Any]) -> None:
        if event.widget is self:
            self.model.look_at_files()

    # -- other windows

    def open_replace(self) -> None:
        """Open find and replace, for the captions of the listed images."""
        if self.model.settle():
            if self.replace_window is not None and self.replace_window.winfo_exists():
                self.replace_window.close()
            self.replace_window = ReplaceWindow(self, self._context, self.model.session, self._note_texts)

    def open_captions(self) -> None:
        """Open the window that writes captions with a model."""
        self._annotate(is_for_masks=False)

    def open_masks(self) -> None:
        """Open the window that writes masks with a model."""
        self._annotate(is_for_masks=True)

    def _annotate(self, *, is_for_masks: bool) -> None:
        if self.model.settle():
            if self.annotate_window is not None and self.annotate_window.winfo_exists():
                self.annotate_window.close()
            source = self.model.session.set.source
            self.annotate_window = AnnotateWindow(
                self, self._context, source, is_for_masks=is_for_masks, done=self._show_annotations
            )

    def _show_annotations(self) -> None:
        if self.winfo_exists():
            self.model.look_at_files()
            self.model.read_again()

    def _note_texts(self, texts: dict[Path, str]) -> None:
        if self.winfo_exists():
            self.model.note_texts(texts)

    # -- closing

    def close(self) -> None:
        """Save, and close unless something could not be saved."""
        if self.model.settle():
            self.destroy()

    def destroy(self) -> None:
        """Save what is left, also when the program ends."""
        self.model.close(session_file().parent / "unsaved_captions")
        super().destroy()
        self._context.captions_changed()


_FINER, _COARSER = 1 / 1.15, 1.15  # of the brush


def bind_keys(editor: CaptionEditor) -> None:
    """Bind the keys of the window, and the ones that also work in its texts."""
    for sequence, command in _everywhere(editor).items():
        _bind(editor, sequence, command, is_for_text=True)
        for widget in (editor.caption_panel.text, editor.caption_panel.entry.tk_entry):  # before Tk's own
            widget.bind(sequence, partial(_run, command))
    for sequence, command in _outside_texts(editor).items():
        _bind(editor, sequence, command)


def _everywhere(editor: CaptionEditor) -> Mapping[str, Callable[[], object]]:
    return {
        "<Prior>": lambda: editor.model.step(-1),
        "<Next>": lambda: editor.model.step(1),
        "<Alt-Up>": lambda: editor.model.step(-1),
        "<Alt-Down>": lambda: editor.model.step(1),
        "<Control-s>": editor.save,
        "<Control-h>": editor.open_replace,
        "<Control-m>": editor.tool_bar.next_view,
        "<Control-f>": lambda: editor.list_panel.search.tk_entry.focus_set(),
        "<Control-d>": lambda: editor.tool_bar.choose("brush"),
    }


def _outside_texts(editor: CaptionEditor) -> Mapping[str, Callable[[], object]]:
    canvas, choose = editor.canvas, editor.tool_bar.choose
    return {
        "<v>": lambda: choose("move"),
        "<b>": lambda: choose("brush"),
        "<e>": lambda: choose("eraser"),
        "<f>": lambda: choose("fill"),
        "<bracketleft>": lambda: canvas.set_brush(canvas.brush_px * _FINER),
        "<bracketright>": lambda: canvas.set_brush(canvas.brush_px * _COARSER),
        "<Up>": lambda: editor.model.step(-1),
        "<Down>": lambda: editor.model.step(1),
        "<plus>": lambda: canvas.zoom(1.25),
        "<minus>": lambda: canvas.zoom(0.8),
        "<Key-0>": canvas.fit,
        "<Control-z>": editor.model.undo_mask,
        "<Control-Z>": editor.model.redo_mask,
        "<Control-y>": editor.model.redo_mask,
    }


def _bind(editor: CaptionEditor, sequence: str, command: Callable[[], object], *, is_for_text: bool = False) -> None:
    """Bind a key of the window; keys of texts stay theirs. None of them reaches the main window."""

    def on_press(event: tk.Event[Any]) -> str:
        if is_for_text or not isinstance(event.widget, tk.Text | tk.Entry):
            command()
        return "break"

    editor.bind(sequence, on_press)


def _run(command: Callable[[], object], _event: object) -> str:
    command()
    return "break"
