"""The window with all captions of a concept: a grid to edit them in, and changes of all that are listed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import cast

from modules.system.problem import count
from ui.features.captions.all_captions import CHOICES, AllCaptions, Choice
from ui.features.captions.caption_rows import CaptionRows
from ui.features.captions.image_set import Source
from ui.features.captions.replace_window import ReplaceWindow
from ui.features.captions.replacing import Place, phrase_changes
from ui.forms.context import Context
from ui.loop.background import Job, cancel
from ui.widgets import controls
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_KEYS = "Tab or Return: next caption. Shift+Return: another line. Escape: as it was."
_NOTHING = "No images are listed."
_LABELS: Mapping[Place, tuple[str, str]] = {
    "first": ("Put first", "Put it at the beginning of the captions that are listed"),
    "last": ("Put last", "Put it at the end of the captions that are listed"),
    "remove": ("Remove", "Remove it from the beginning and the end of the captions that are listed"),
}
_SEARCH_SECONDS, _COUNT_SECONDS = 0.2, 1.0


class AllCaptionsWindow(Window):
    """Reads a source, and writes each caption when it is left."""

    def __init__(self, context: Context, sources: Mapping[str, Source], chosen: str) -> None:
        super().__init__(context.root, context.theme, "All captions")
        self.model = AllCaptions(sources[chosen], context.pump.lasting)
        self.buttons: dict[str, Button] = {}
        self._context, self._sources = context, sources
        self._counting: Job | None = None
        self._build(chosen)
        self.at_close(
            self.rows.commit,
            self.model.changed.subscribe(self._soon),
            self.model.written.subscribe(self._after_write),
            lambda: cancel(self._counting),
            *(partial(context.pump.forget, key) for key in (self, (self, "search"), (self, "counts"))),
        )
        self.model.open(sources[chosen])
        self.appear(1120, 660)
        self.search_entry.tk_entry.focus_set()

    def destroy(self) -> None:
        """Write what is left, also when the program ends."""
        super().destroy()
        self.model.flush()
        self.model.written.subscribe(self._context.captions_changed)  # of many files, which are still being written
        self._context.captions_changed()

    def change_all(self, place: Place) -> None:
        """Add the phrase to the listed captions, or remove it."""
        self.rows.commit()
        self.model.write(phrase_changes(place, self.phrase.get(), self.model.texts))

    def replace(self) -> ReplaceWindow:
        """Find and replace in the listed captions, with a preview of each change."""
        self.rows.commit()
        self.model.flush()
        return ReplaceWindow(self, self._context, self.model, self.model.note_texts)

    def undo(self) -> None:
        """Take back the last change."""
        self.rows.commit()
        self.model.undo()

    # -- building

    def _build(self, chosen: str) -> None:
        theme, px, context = self.theme, self.theme.px, self._context
        top = Panel(self, theme)
        top.pack(fill="x", padx=px(PAD), pady=(px(PAD), px(8)))
        if len(self._sources) > 1:
            self.source = TextVar(master=self, value=chosen)
            titles = {name: source.title for name, source in self._sources.items()}
            choice = controls.Choice(top, theme, self.source, titles, on="window", width=180, command=self._open)
            choice.pack(side="left", padx=(0, GAP))
        self.choice = TextVar(master=self, value="all")
        self.words, self.phrase = TextVar(master=self), TextVar(master=self)
        choices = dict[str, str](CHOICES.items())
        controls.Choice(top, theme, self.choice, choices, on="window", width=190).pack(side="left", padx=(0, GAP))
        self.search_entry = Entry(top, theme, self.words, on="window", width=260, placeholder="Words in the caption")
        self.search_entry.pack(side="left", padx=(0, GAP))
        self.summary = Text(top, theme, colour="muted")
        self.summary.pack(side="left", padx=(px(4), 0))
        bar = Panel(self, theme)
        bar.pack(fill="x", padx=px(PAD), pady=(0, px(10)))
        Entry(bar, theme, self.phrase, on="window", width=230, placeholder="Trigger word or phrase").pack(
            side="left", padx=(0, GAP)
        )
        for place, (label, tip) in _LABELS.items():
            self.buttons[place] = context.buttons.add(bar, label, partial(self.change_all, place), tip)
        replace_tip, undo_tip = "With a preview of each change", "Take back the last change of captions"
        self.buttons["replace"] = context.buttons.add(bar, "Find and replace…", self.replace, replace_tip)
        self.buttons["undo"] = context.buttons.add(bar, "Undo", self.undo, undo_tip, is_last=True)
        footer = self.add_footer()
        self.message = Text(footer, theme, _KEYS, colour="muted")
        self.message.pack(side="left")
        self.rows = CaptionRows(self, context, text_of=self.model.text_of, edit=self.model.edit, empty_text="")
        self.rows.pack(fill="both", expand=True, padx=px(PAD))
        for variable in (self.choice, self.words):
            variable.trace_add("write", lambda *_: self._list_soon())
        self.phrase.trace_add("write", lambda *_: self._soon())

    # -- following

    def _open(self, name: str) -> None:
        self.rows.commit()
        self.model.open(self._sources[name])

    def _list_soon(self) -> None:
        key = (self, "search")
        self._context.pump.redraw_soon(key, self._list, at_most_every_seconds=_SEARCH_SECONDS)

    def _list(self) -> None:
        self.rows.commit()
        choice, words = self.choice.get(), self.words.get()
        self.model.list(cast(Choice, "with" if choice == "all" and words.strip() else choice), words)

    def _after_write(self) -> None:
        """Let the pages count again once nothing was written for a moment."""
        key = (self, "counts")
        self._context.pump.redraw_soon(key, self._context.captions_changed, quiet_seconds=_COUNT_SECONDS)

    def _soon(self) -> None:
        self._context.pump.redraw_soon(self, self._follow, at_most_every_seconds=0.1)

    def _follow(self) -> None:
        model = self.model
        if self.rows.images is not model.images:
            self.rows.show(model.images)
        else:
            self.rows.refresh()
        self.rows.empty.set_text("" if model.is_reading else _NOTHING)
        listed, of_all = count(len(model.images), "caption"), len(model.set.images)
        self.summary.set_text("Reading…" if model.is_reading else f"{listed} of {of_all:,}")
        self.message.set_text(model.message or _KEYS)
        phrase, texts = self.phrase.get(), model.texts if self.phrase.get().strip() else {}
        cancel(self._counting)
        self._counting = self._context.pump.background.run(partial(_count, phrase, texts), self._show_counts)
        self.buttons["replace"].set_enabled(bool(model.images))
        self.buttons["undo"].set_enabled(model.can_undo)

    def _show_counts(self, counts: Mapping[Place, int]) -> None:
        self._counting = None
        for place, (label, _) in _LABELS.items():
            number = counts.get(place)
            self.buttons[place].configure(text=label if number is None else f"{label} ({number:,})")
            self.buttons[place].set_enabled(bool(number))


def _count(phrase: str, texts: Mapping[Path, str]) -> Mapping[Place, int]:
    """Return how many captions each change would change; nothing without a phrase."""
    return {place: len(phrase_changes(place, phrase, texts)) for place in _LABELS} if texts else {}
