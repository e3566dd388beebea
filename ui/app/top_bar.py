"""The top bar: the loaded preset or file, load and save, and the three choices that shape every page."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from modules.config.records import why_unused
from modules.config.schema import Config
from modules.system.problem import count
from ui.forms.binding import ChoiceBinding, choose_from_list, tip_of
from ui.forms.changes import changes
from ui.forms.context import Context
from ui.forms.setting_pages import TOP_BAR
from ui.widgets.controls import Button, Choice
from ui.widgets.fitted_text import shorten
from ui.widgets.menu import add_submenu, is_line, make_menu, open_at
from ui.widgets.panel import Panel, Text, call_later
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_ARROW_PX = 44
_TEXT_EDGES_PX = 16  # of a button, on both sides of its text
_MIN_CHOICE_PX = 96
_PRESET_PX = (110, 200)  # the narrowest and the usual width of the preset's button
_MAX_NAME_CHARS = 26
_FLASH_MS = 1600
_PRESET_MENU = (
    "bring_back", "other_family", "which_method", "manage_presets", "import_presets", "differences", "json", "machines",
    "web_page", "tokens",
)  # fmt: skip


class TopBar(Panel):
    """Preset menu, load, save, save as; family, method, training target."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "bar")
        self._context = context
        px = context.theme.px
        self._inner = inner = Panel(self, context.theme, "bar")
        inner.pack(fill="x", padx=px(PAD + 4), pady=(px(10), px(12)))
        self._add_captions(inner)
        self.preset_button = Button(inner, context.theme, "", self.open_menu, on="bar", width=_PRESET_PX[1], anchor="w")
        context.tips.attach(self.preset_button, self._describe_source)
        self.preset_button.grid(row=1, column=0)
        self._files: list[Button] = []
        for column, name in enumerate(("load", "save", "save_as"), start=1):
            button = context.buttons.make(inner, name, on="bar")
            button.grid(row=1, column=column, padx=(GAP, 0))
            self._files.append(button)
        self.save_as_button = button
        inner.columnconfigure(4, weight=1)
        self.choices: dict[str, Choice] = {}
        self._captions: dict[str, Text] = {}
        self._choice_box = Panel(inner, context.theme, "bar")
        self._is_narrow = False
        self._bindings = [self._add_choice(self._choice_box, path, column) for column, path in enumerate(TOP_BAR)]
        self._place_choices()
        context.form.changed.subscribe(lambda: context.pump.redraw_soon("top bar", self.refresh))
        context.field_problems.changed.subscribe(lambda: context.pump.redraw_soon("top bar", self.refresh))
        context.navigation.top_bar_wanted.subscribe(self.show_choice)
        inner.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "width"), self._fit))
        self.refresh()

    def refresh(self) -> None:
        """Show the name and the number of unsaved changes."""
        form = self._context.form
        kinds = {"built_in": "Preset", "preset": "Your preset", "file": "Config", "none": "Config"}
        self._caption.set_text(kinds[form.source.kind])
        self.differs_link.set_text(self._describe_differences())
        name = shorten(form.source.name, _MAX_NAME_CHARS)
        text = f"{name}{' •' if form.is_changed else ''}  ▾"
        if self.preset_button.cget("text") != text:
            self.preset_button.configure(text=text)
        for path, caption in self._captions.items():
            caption.recolour(self._colour_of(path))
            self._show_choice(path)
        self._fit()

    def show_choice(self, path: str) -> None:
        """Focus one of the choices and highlight its caption for a moment."""
        self.choices[path].focus_ring()
        caption = self._captions[path]
        caption.recolour("accent")
        call_later(self, _FLASH_MS, lambda: self._context.pump.redraw_soon("top bar", self.refresh))

    def open_menu(self) -> None:
        """Open the menu of presets below its button."""
        open_at(self.make_menu(), self.preset_button)

    def make_menu(self) -> tk.Menu:
        """Return the menu: the presets in groups, recent files, rare actions."""
        context = self._context
        menu = make_menu(self, context.theme)
        self._add_action(menu, "find_preset")
        menu.add_separator()
        context.links.add_presets(menu, context.documents.presets(), context.documents.open_preset)
        if is_line(menu, "end"):
            menu.add_command(label="No presets", state="disabled")
        recent = [Path(name) for name in context.preferences.now.recent]
        if recent:
            menu.add_separator()
            files = add_submenu(menu, context.theme, "Recent files")
            for path, label in zip(recent, _distinct_labels(recent), strict=True):
                files.add_command(label=label, command=partial(context.documents.open_recent, path))
        menu.add_separator()
        for name in _PRESET_MENU:
            if context.actions[name].is_enabled():
                self._add_action(menu, name)
        return menu

    def _add_action(self, menu: tk.Menu, name: str) -> None:
        action = self._context.actions[name]
        menu.add_command(
            label=action.label, accelerator=action.shortcut, command=partial(self._context.actions.run, name)
        )

    def open_save_menu(self) -> None:
        """Open the menu of "Save as"."""
        open_at(self.make_save_menu(), self.save_as_button)

    def make_save_menu(self) -> tk.Menu:
        """Return the menu of "Save as"."""
        menu = make_menu(self, self._context.theme)
        menu.add_command(label="As a file…", command=self._context.documents.save_as_file)
        menu.add_command(label="As a preset…", command=self._context.documents.save_as_preset)
        menu.add_separator()
        menu.add_command(label=self._context.actions["export"].label, command=self._context.documents.export)
        return menu

    def _add_captions(self, inner: Panel) -> None:
        """Show the kind above the name, and next to it a link to the list of differences."""
        context = self._context
        box = Panel(inner, context.theme, "bar")
        box.grid(row=0, column=0, columnspan=4, sticky="w")
        self._caption = Text(box, context.theme, "", role="caption", colour="muted", on="bar")
        self._caption.pack(side="left")
        link = Text(box, context.theme, "", role="caption", colour="muted", on="bar", cursor="hand2")
        link.pack(side="left", padx=(context.theme.px(GAP), 0))
        link.bind("<Button-1>", lambda _e: context.actions.run("differences"), add="+")
        link.bind("<Enter>", lambda _e: link.recolour("accent"), add="+")
        link.bind("<Leave>", lambda _e: link.recolour("muted"), add="+")
        context.tips.attach(link, lambda: context.actions["differences"].tip)
        self.differs_link = link

    def _describe_differences(self) -> str:
        """Return the number of changed settings; for an unchanged config, of those not at their defaults."""
        form = self._context.form
        if form.is_changed:
            number = len(changes(form.config, form.baseline))
            return count(number, "change") if number else ""
        number = 0 if form.source.kind == "built_in" else len(changes(form.config, Config(), with_new_lists=False))
        return f"{number:,} not at default" if number else ""

    def _add_choice(self, inner: Panel, path: str, column: int) -> ChoiceBinding:
        context = self._context
        record = context.form.record(path)
        assert record is not None, path
        caption = Text(inner, context.theme, record.label, role="caption", colour="muted", on="bar")
        gap = GAP if column else 0
        caption.grid(row=0, column=column, sticky="w", padx=(context.theme.px(gap), 0))
        variable = TextVar(master=inner)
        choice = Choice(inner, context.theme, variable, record.choices, on="bar", width=_MIN_CHOICE_PX)
        choice.open_instead = lambda: choose_from_list(context, record, variable.set)
        choice.grid(row=1, column=column, padx=(gap, 0))
        context.tips.attach(choice, lambda: tip_of(context, record))
        self.choices[path] = choice
        self._captions[path] = caption
        variable.trace_add("write", lambda *_: context.pump.redraw_soon((self, "width"), self._fit))
        return ChoiceBinding(context.form, record, variable, partial(self._offer, path))

    def _offer(self, path: str, choices: Mapping[str, str]) -> None:
        """Update the choices."""
        self.choices[path].set_choices(choices)
        self._show_choice(path)

    def _show_choice(self, path: str) -> None:
        """Show a choice that the training target uses and that has several options, or a problem."""
        form = self._context.form
        is_used = len(self.choices[path].choices) > 1 and not why_unused(form.config, path)
        for widget in (self._captions[path], self.choices[path]):
            if is_used or self._context.field_problems.at(path) is not None:
                tk.Grid.grid_configure(widget)
            else:
                tk.Grid.grid_remove(widget)

    def _fit(self) -> None:
        """Make each choice as wide as its text, and the preset's button as wide as the rest allows."""
        font = tkfont.Font(self, font=self._context.theme.font("body"))
        scale = self._context.theme.scale
        for choice in self.choices.values():
            width = max(_MIN_CHOICE_PX, round(font.measure(choice.get()) / scale) + _ARROW_PX)
            if choice.cget("width") != width:
                choice.configure(width=width)
        room, px = self._inner.winfo_width(), self._context.theme.px
        if room <= 1:
            return
        least, usual = _PRESET_PX
        least = max(least, round(font.measure(self.preset_button.cget("text")) / scale) + _TEXT_EDGES_PX)  # it grows
        buttons_px = sum(px(GAP) + button.winfo_reqwidth() for button in self._files)
        choices_px = px(GAP) + self._choice_box.winfo_reqwidth()
        is_narrow = px(least) + buttons_px + choices_px > room
        if is_narrow != self._is_narrow:
            self._is_narrow = is_narrow
            self._place_choices()
        width = max(least, min(usual, int((room - buttons_px - (0 if is_narrow else choices_px)) / scale)))
        if width != self.preset_button.cget("width"):
            self.preset_button.configure(width=width)

    def _place_choices(self) -> None:
        """Place the choices next to the buttons, or below them in a narrow window."""
        gap = self._context.theme.px(GAP)
        if self._is_narrow:
            self._choice_box.grid(row=2, column=0, rowspan=1, columnspan=6, sticky="w", padx=0, pady=(gap, 0))
        else:
            self._choice_box.grid(row=0, column=5, rowspan=2, columnspan=1, sticky="e", padx=(gap, 0), pady=0)

    def _colour_of(self, path: str) -> str:
        """Return the colour of a choice's caption, which shows a problem with it."""
        problem = self._context.field_problems.at(path)
        return problem.severity if problem is not None else "muted"

    def _describe_source(self) -> str:
        source = self._context.form.source
        notes = self._context.form.baseline.general.notes
        return "\n".join(part for part in (source.name, notes, str(source.path or "not saved yet")) if part)


def _distinct_labels(files: Sequence[Path]) -> list[str]:
    """Return the names of files; files of the same name get their folder."""
    times = Counter(path.name for path in files)
    return [path.name if times[path.name] == 1 else f"{path.name}   in {path.parent.name}" for path in files]
