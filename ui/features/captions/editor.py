"""The window of the caption and mask editor: the list of images, the large image with its mask, and the caption."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from modules.system.paths import session_file
from ui.features.captions.annotate_window import AnnotateWindow
from ui.features.captions.caption_side import CaptionSide
from ui.features.captions.image_set import ImageSet, Shown, Source, read_images
from ui.features.captions.keys import bind_keys
from ui.features.captions.list_panel import OTHER_FOLDER, ListPanel
from ui.features.captions.mask_canvas import MaskCanvas
from ui.features.captions.replace_window import ReplaceWindow
from ui.features.captions.session import EditorSession, Loaded, Saving, load_image
from ui.features.captions.tool_bar import ToolBar
from ui.forms.context import Context
from ui.loop.background import Job
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel
from ui.widgets.theme import GAP, PAD

_SIZE = (1280, 820)
_SIDES = ((216, 0.17, 320), (286, 0.23, 430))  # of the list and the caption: least px, share of the width, most px
_MAX_AT_ONCE = 2000  # images that are searched without a background job
_RULE = "Saved when you open another image or close the window (Ctrl+S: now)."


class CaptionEditor(Window):
    """Edits the captions and masks of a source; `sources` are the others that can be chosen."""

    def __init__(
        self,
        context: Context,
        sources: Mapping[str, Source],
        chosen: str,
    ) -> None:
        super().__init__(context.root, context.theme, "Captions and masks")
        self.sources = dict(sources)
        self.session = EditorSession(self.sources[chosen])
        self.replace_window: ReplaceWindow | None = None
        self.annotate_window: AnnotateWindow | None = None
        self._context = context
        self._chosen = chosen
        self._job: Job | None = None
        self._reading: Job | None = None
        self._selecting: Job | None = None
        self._saving = Saving(self.session, context.interaction, self)
        self._build()
        bind_keys(self)
        self.bind("<FocusIn>", self._came_back, add="+")
        self.appear(*_SIZE)
        self.caption_panel.focus_text()  # most who open it come to write
        self.read()

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
        self.bind("<Configure>", self._resized)
        left, middle, right = (Panel(card, theme, "card") for card in cards)
        for inner in (left, middle, right):
            inner.pack(fill="both", expand=True, padx=px(10), pady=px(10))
        names = {name: source.title for name, source in self.sources.items()}
        self.list_panel = ListPanel(
            left, self._context, self.session, sources=names, on_source=self._source_chosen, on_select=self._select,
            on_choose=self.go_to,
        )  # fmt: skip
        self.list_panel.source.set(self._chosen)
        self.list_panel.pack(fill="both", expand=True)
        self.canvas = MaskCanvas(
            middle, theme, self._context.pump, on_change=self._mask_changed, on_view=self._view_changed
        )
        self.tool_bar = ToolBar(middle, self._context, self.canvas, undo=self.undo_mask, redo=self.redo_mask)
        self.tool_bar.pack(fill="x", pady=(0, px(8)))
        self.canvas.pack(fill="both", expand=True)
        self._build_caption(right)

    def _resized(self, event: tk.Event[Any]) -> None:
        if event.widget is self:
            self._share_width(event.width)

    def _share_width(self, width: int) -> None:
        """Give the lists at the sides a part of the width."""
        for card, (least, share, most) in zip(self._sides, _SIDES, strict=True):
            wanted = round(min(self.theme.px(most), max(self.theme.px(least), share * width)))
            if int(card.cget("width")) != wanted:
                card.configure(width=wanted)

    def _build_caption(self, master: Panel) -> None:
        self.side = CaptionSide(
            master, self._context, on_edit=self._caption_edited, counts=lambda: self.session.set.counts,
            commands={
                "previous": lambda: self._step_and_write(-1), "next": lambda: self._step_and_write(1),
                "revert": self.revert, "replace": self.open_replace, "auto_captions": self.open_captions,
                "auto_masks": self.open_masks,
            },
        )  # fmt: skip
        self.side.pack(fill="both", expand=True)
        self.caption_panel, self.buttons = self.side.caption, self.side.buttons
        self.note, self.status = self.side.note, self.side.status

    # -- images

    def read(self) -> None:
        """Read the folder in the background."""
        self.list_panel.refresh(is_reading=True)
        self.canvas.show_message("")
        self.note.set_text(self.session.set.source.note)
        if self._reading is not None:
            self._reading.cancel()
        work = partial(read_images, self.session.set.source)
        self._reading = self._context.pump.background.run(work, self._was_read, self._not_read)

    def open_source(self, name: str) -> None:
        """Edit another source; what is open is saved first."""
        if self._leave():
            self._chosen = name
            self.session.close()
            self.session.list_images(ImageSet(self.sources[name]))
            self._show_caption()
            self.read()
        self.list_panel.source.set(self._chosen)

    def open_concepts(self, sources: Mapping[str, Source], chosen: str) -> None:
        """Edit a concept of the config as it is now; other folders stay in the choice."""
        others = {name: source for name, source in self.sources.items() if not name.startswith("concept ")}
        has_changed = self.sources.get(chosen) != sources.get(chosen)
        self.sources = {**sources, **others}
        self._show_sources()
        if chosen in self.sources and (chosen != self._chosen or has_changed):
            self.open_source(chosen)

    def go_to(self, index: int) -> None:
        """Open an image of the list, after saving the last one."""
        session = self.session
        if not 0 <= index < len(session.images) or session.images[index] == session.current or not self._leave():
            return
        self._open(session.images[index])

    def step(self, by: int) -> None:
        """Open the next or the previous image of the list."""
        session = self.session
        if session.images:
            self.go_to(min(len(session.images) - 1, max(0, session.index + by)) if session.index >= 0 else 0)

    def _step_and_write(self, by: int) -> None:
        """Open another image by a button, ready for what the user does: writing a caption, or drawing a mask."""
        self.step(by)
        if self.canvas.tool == "move":
            self.caption_panel.focus_text()
        else:
            self.canvas.focus_set()

    def _was_read(self, images: ImageSet) -> None:
        self._reading = None
        current = self.session.current
        self.session.list_images(images)
        self._select(*self.list_panel.selection)
        archived = images.num_in_archives
        if archived:
            self.note.set_text(f"{archived:,} images in archives are not listed: nothing can be written beside them.")
        if current is None and images.images:
            self._open(images.images[0])
        elif not images.images:
            self.canvas.show_message("This folder contains no image files.")
        self.list_panel.refresh()

    def _not_read(self, error: Exception) -> None:
        self._reading = None
        reason = getattr(error, "strerror", None) or str(error)
        self.canvas.show_message(f"{self.session.set.source.folder} cannot be read: {reason}")
        self.list_panel.refresh()

    def _select(self, shown: Shown, words: str) -> None:
        """List the images of a choice and a search; those of a large folder are found in the background."""
        if self._selecting is not None:
            self._selecting.cancel()
        images = self.session.set
        if len(images.images) <= _MAX_AT_ONCE:
            self._selected(images.shown(shown, words))
        else:
            work = partial(images.shown, shown, words)
            self._selecting = self._context.pump.background.run(work, self._selected)

    def _selected(self, images: tuple[Path, ...]) -> None:
        self._selecting = None
        self.session.show_images(images)
        self.list_panel.refresh()

    def _source_chosen(self, name: str) -> None:
        if name != OTHER_FOLDER:
            if name != self._chosen:
                self.open_source(name)
            return
        self.list_panel.source.set(self._chosen)
        folder = self._context.interaction.ask_folder("Edit the captions of a folder", self.session.set.source.folder)
        if folder is not None and self.winfo_exists():
            self.sources[str(folder)] = Source(folder, folder.name or str(folder))
            self._show_sources()
            self.open_source(str(folder))

    def _show_sources(self) -> None:
        names = {key: source.title for key, source in self.sources.items()}
        self.list_panel.source_choice.set_choices({**names, OTHER_FOLDER: "Another folder…"})

    def _open(self, image: Path) -> None:
        self.session.open(image)
        self._show_caption()
        self.list_panel.list.choose(self.session.index)
        self._load()

    def _load(self) -> None:
        """Load the open image with its mask in the background."""
        image = self.session.current
        if self._job is not None:
            self._job.cancel()
        if image is None:
            return
        self.canvas.mask = None
        self.tool_bar.refresh()
        work = partial(load_image, image, self.session.set.source.mask_of(image))
        self._job = self._context.pump.background.run(work, self._loaded, self._not_loaded)

    def _loaded(self, loaded: Loaded) -> None:
        self._job = None
        self.session.attach(loaded)
        self.canvas.show(loaded.image, self.session.mask)
        self.canvas.set_tool(self.canvas.tool)
        width, height = loaded.image.size
        self.side.facts.set_text(f"{width} × {height}")
        if loaded.problem:
            self.note.set_text(f"The mask cannot be edited: {loaded.problem}")
        self._refresh()

    def _not_loaded(self, error: Exception) -> None:
        self._job = None
        self.canvas.show_message(f"This image cannot be shown: {error}")
        self.tool_bar.refresh()

    # -- caption and mask

    def _show_caption(self, *, keeps_undo: bool = False) -> None:
        session, caption = self.session, self.session.caption
        self.side.show_name(session.current.name if session.current else "")
        if not keeps_undo:
            self.side.facts.set_text("")
            self.note.set_text(session.set.source.note)
        is_editable = caption is not None and caption.file.is_editable
        self.caption_panel.show(
            caption.text if caption is not None else "",
            is_editable=is_editable,
            problem=session.caption_problem,
            keeps_undo=keeps_undo,
        )
        self._refresh()

    def _caption_edited(self, text: str) -> None:
        if self.session.caption is not None:
            self.session.caption.edit(text)
        self._refresh()

    def _mask_changed(self) -> None:
        self._refresh()

    def _view_changed(self) -> None:
        if hasattr(self, "tool_bar"):
            self.tool_bar.refresh()

    def _refresh(self) -> None:
        session, caption = self.session, self.session.caption
        self.status.set_text(f"Edited. {_RULE}" if session.is_edited else "")
        self.buttons["revert"].set_enabled(caption is not None and caption.differs_from_first)
        self.tool_bar.refresh()
        self.list_panel.list.draw_soon()

    def undo_mask(self) -> None:
        """Undo the last step of the mask."""
        if self.session.mask is not None:
            self.canvas.refresh(self.session.mask.undo())
            self._refresh()

    def redo_mask(self) -> None:
        """Redo the last step of the mask that was undone."""
        if self.session.mask is not None:
            self.canvas.refresh(self.session.mask.redo())
            self._refresh()

    def revert(self) -> None:
        """Show the caption as it was when the image was opened; the text can be undone."""
        if self.session.caption is not None:
            self.session.caption.revert()
            self._show_caption(keeps_undo=True)

    # -- saving

    def save(self) -> bool:
        """Save now; return whether all is saved."""
        is_saved = self._leave()
        if is_saved:
            self.status.set_text("Saved.")
        return is_saved

    def _leave(self) -> bool:
        """Save what was edited, and ask about what cannot be; return whether nothing is left to save."""
        if not self._saving.settle():
            return False
        self.list_panel.show_count()
        self._refresh()
        return True

    def is_open(self) -> bool:
        """Return whether the window still exists."""
        return bool(self.winfo_exists())

    def discarded(self) -> None:
        """Show the file, for which the edits were given up."""
        self._show_caption()
        self._load()

    def kept(self) -> None:
        """Show the edits, which are in the file now."""
        self._show_caption(keeps_undo=True)

    def _came_back(self, event: tk.Event[Any]) -> None:
        """Look at the files again when the window gets the focus: another program may have changed them."""
        if event.widget is not self or self._saving.is_asking:
            return
        state = self.session.look_at_disk()
        if state == "reloaded":
            self._show_caption()
        elif state == "conflict" and self.session.caption is not None:
            self.note.set_text(f"{self.session.caption.path.name} was changed by another program. Saving asks first.")
        if self.session.has_other_mask:
            self._load()

    # -- other windows

    def open_replace(self) -> None:
        """Open find and replace, for the captions of the listed images."""
        if self._leave():
            if self.replace_window is not None and self.replace_window.winfo_exists():
                self.replace_window.close()
            self.replace_window = ReplaceWindow(self, self._context, self.session, self._texts_written)

    def open_captions(self) -> None:
        """Open the window that writes captions with a model."""
        self._annotate("captions")

    def open_masks(self) -> None:
        """Open the window that writes masks with a model."""
        self._annotate("masks")

    def _annotate(self, what: str) -> None:
        if self._leave():
            if self.annotate_window is not None and self.annotate_window.winfo_exists():
                self.annotate_window.close()
            self.annotate_window = AnnotateWindow(
                self, self._context, self.session.set.source, is_for_masks=what == "masks", done=self._annotated
            )

    def _annotated(self) -> None:
        if self.winfo_exists():
            self._look_again()
            self.read_quietly()

    def _texts_written(self, texts: dict[Path, str]) -> None:
        if not self.winfo_exists():
            return
        self.session.note_texts(texts)
        self._show_caption()
        self.list_panel.refresh()

    def _look_again(self) -> None:
        if self.session.look_at_disk() == "reloaded":
            self._show_caption()
        if self.session.has_other_mask:
            self._load()

    def read_quietly(self) -> None:
        """Read the folder again while the list stays."""
        if self._reading is None:
            work = partial(read_images, self.session.set.source)
            self._reading = self._context.pump.background.run(work, self._was_read, self._not_read)

    # -- closing

    def close(self) -> None:
        """Save, and close unless something could not be saved."""
        if self._leave():
            self.destroy()

    def destroy(self) -> None:
        """Save what is left, also where the program ends; what cannot be saved is written to a folder of drafts."""
        for unsaved in self.session.save():
            self.session.rescue(unsaved, session_file().parent / "unsaved_captions")
        self.session.close()
        for job in (self._job, self._reading, self._selecting):
            if job is not None:
                job.cancel()
        super().destroy()
        self._context.captions_changed()
